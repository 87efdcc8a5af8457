//! A bare axum handler on the same listener code as everybody's: what HTTP alone costs on this machine.

use axum::Router;
use axum::routing::{get, post};

/// Serves a constant, and the length of a body, at the address in its only argument.
#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let at = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = tokio::net::TcpListener::bind(at).await?;
    println!("{}", listener.local_addr()?);
    let routes = Router::new()
        .route("/", get(async || "{\"status\":\"healthy\"}"))
        .route("/", post(async |body: axum::body::Bytes| body.len().to_string()));
    axum::serve(listener, routes).await
}
