//! `GET /openapi.json`: describes the routes other than `/mcp`, from the types that they read and write.

use axum::http::StatusCode;
use axum::response::Response;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::form::FORM_TYPE;
use crate::health::HealthAnswer;
use crate::operator::{Reset, ShownConfig, Switched};
use crate::respond::{ErrorBody, json_response};
use crate::run::{RunAnswer, RunForm, RunRequest};

/// Statuses of requests that are not served, on any route.
const REFUSAL_STATUSES: [(u16, &str); 13] = [
    (400, "the request cannot be understood"),
    (401, "a token is needed, or the one that was sent is wrong"),
    (403, "not for this client, or not offered"),
    (404, "there is nothing of this name"),
    (405, "this path has other methods"),
    (408, "the body did not arrive in time"),
    (409, "not in this state"),
    (411, "the length of the body is not clear"),
    (413, "the body is too large"),
    (429, "too many requests"),
    (431, "too many headers"),
    (500, "a fault of the server"),
    (503, "no call is taken now"),
];

/// Form of an answer that is served.
enum Answer {
    Json(Value),
    Text(&'static str),
}

/// A route of the document.
struct Route {
    path: &'static str,
    method: &'static str,
    summary: &'static str,
    takes: Option<Value>,
    /// Schema of the body as a form, for a route that takes forms and answers with one on request.
    form: Option<Value>,
    answer: Answer,
}

/// Makes schemas, and collects those that they refer to.
struct Schemas {
    taken: SchemaGenerator,
    given: SchemaGenerator,
}

impl Schemas {
    fn new() -> Self {
        let settings = || {
            let mut settings = SchemaSettings::draft2020_12();
            settings.definitions_path = "/components/schemas".into();
            settings
        };
        let given = settings().for_serialize().into_generator();
        Self { taken: settings().for_deserialize().into_generator(), given }
    }

    fn answer<T: schemars::JsonSchema>(&mut self) -> Answer {
        Answer::Json(self.given.subschema_for::<T>().to_value())
    }

    fn definitions(mut self) -> Map<String, Value> {
        let mut all = self.taken.take_definitions(true);
        all.extend(self.given.take_definitions(true));
        all
    }
}

/// Returns the routes; `schemas` makes the schemas of their bodies.
fn described(schemas: &mut Schemas) -> Vec<Route> {
    let object = json!({ "type": "object" });
    let any = || Answer::Json(json!({ "type": "object" }));
    let route = |method, path, summary, answer| Route {
        path,
        method,
        summary,
        takes: None,
        form: None,
        answer,
    };
    let get = |path, summary, answer| route("get", path, summary, answer);
    let post = |path, summary, answer| route("post", path, summary, answer);
    let run = schemas.taken.subschema_for::<RunRequest>().to_value();
    let form = schemas.taken.subschema_for::<RunForm>().to_value();
    let answer = schemas.answer::<RunAnswer>();
    let run = Route {
        takes: Some(run),
        form: Some(form),
        ..post("/run", "Run a command in a cell", answer)
    };
    let execute =
        Route { takes: Some(object), ..post("/tools/{name}/execute", "Call a tool", any()) };
    vec![
        get("/", "Name, version and paths", any()),
        get("/tools", "The tools that this client may call", any()),
        get("/health", "Checks by priority", schemas.answer::<HealthAnswer>()),
        get("/metrics", "Figures for Prometheus", Answer::Text("application/openmetrics-text")),
        get("/events", "Health and figures every 5 s", Answer::Text("text/event-stream")),
        get("/openapi.json", "This document", any()),
        get("/config", "The configuration (operator)", schemas.answer::<ShownConfig>()),
        run,
        execute,
        post("/tools/{name}/enable", "Offer a tool (operator)", schemas.answer::<Switched>()),
        post("/tools/{name}/disable", "Withhold a tool (operator)", schemas.answer::<Switched>()),
        post("/tools/{name}/reset", "Close a tool's breaker (operator)", schemas.answer::<Reset>()),
    ]
}

/// Returns the paths of the server.
pub(crate) fn paths() -> Vec<&'static str> {
    let described = described(&mut Schemas::new());
    std::iter::once("/mcp").chain(described.iter().map(|route| route.path)).collect()
}

impl Route {
    fn operation(&self) -> Value {
        let content = |kind: &str, schema: Value| json!({ kind: { "schema": schema } });
        let served = match &self.answer {
            Answer::Json(schema) => content("application/json", schema.clone()),
            Answer::Text(kind) => content(kind, json!({ "type": "string" })),
        };
        let mut responses = Map::new();
        let error = json!({ "$ref": "#/components/schemas/ErrorBody" });
        for (status, description) in REFUSAL_STATUSES {
            let refused = content("application/json", error.clone());
            let refused = json!({ "description": description, "content": refused });
            responses.insert(status.to_string(), refused);
        }
        let mut statuses = vec![("200", "served")];
        if self.path == "/health" {
            statuses.extend([("207", "degraded: calls are taken"), ("503", "unhealthy")]);
        }
        for (status, description) in statuses {
            let mut content = served.clone();
            if let (Some(_), Some(content)) = (&self.form, content.as_object_mut()) {
                content.insert(FORM_TYPE.to_owned(), json!({ "schema": { "type": "object" } }));
            }
            let served = json!({ "description": description, "content": content });
            responses.insert(status.to_owned(), served);
        }
        let mut operation = json!({ "summary": self.summary, "responses": responses });
        if let Some(fields) = operation.as_object_mut() {
            if let Some(schema) = &self.takes {
                let mut taken = content("application/json", schema.clone());
                if let (Some(form), Some(taken)) = (&self.form, taken.as_object_mut()) {
                    taken.insert(FORM_TYPE.to_owned(), json!({ "schema": form }));
                }
                let body = json!({ "content": taken });
                fields.insert("requestBody".to_owned(), body);
            }
            if self.path.contains("{name}") {
                let string = json!({ "type": "string", "minLength": 1 });
                let name =
                    json!([{ "name": "name", "in": "path", "required": true, "schema": string }]);
                fields.insert("parameters".to_owned(), name);
            }
        }
        operation
    }
}

fn document() -> Value {
    let mut schemas = Schemas::new();
    schemas.given.subschema_for::<ErrorBody>();
    let mut paths = Map::new();
    for route in described(&mut schemas) {
        paths.insert(route.path.to_owned(), json!({ route.method: route.operation() }));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "cofferdam",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Commands and tools in cells of their own. MCP is at /mcp.",
        },
        "security": [{ "token": [] }, {}],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas.definitions(),
        },
    })
}

/// Answers with the document.
pub(crate) async fn openapi() -> Response {
    json_response(StatusCode::OK, &document())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_of_the_document_leads_somewhere() {
        let document = document();
        let text = document.to_string();
        let references: Vec<&str> =
            text.split("\"$ref\":\"#").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(!references.is_empty());
        for reference in references {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
    }
}
