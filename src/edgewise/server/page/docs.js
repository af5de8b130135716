// The API's description, drawn by Swagger UI, which comes with an installed package.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#api", deepLinking: true });
