//! Tests of interception with real TLS and HTTP, against servers with a test authority.

mod clients;
mod ech;
mod hostile;
mod lab;
mod secret_use;
