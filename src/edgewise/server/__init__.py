"""Models behind HTTP: an API in the shape of LibreTranslate's, and a page."""
