//! Reads the name of a tool from the path of a request.

use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;

use crate::respond::Refusal;

/// Maximum bytes of the name of a tool.
const MAX_NAME_BYTES: usize = 128;

/// Name of a tool in the path of a request. An impossible name is answered as an unknown one.
pub(crate) struct ToolInPath(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for ToolInPath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let unknown = || Refusal::new(StatusCode::NOT_FOUND, "not_found", "there is no such tool");
        let Path(name) =
            Path::<String>::from_request_parts(parts, state).await.map_err(|_| unknown())?;
        let is_name =
            name.len() <= MAX_NAME_BYTES && name.bytes().all(|byte| byte.is_ascii_graphic());
        is_name.then_some(Self(name)).ok_or_else(unknown)
    }
}
