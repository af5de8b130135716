"""The paper's tables as data: each row trained and measured, continued where it stopped."""
