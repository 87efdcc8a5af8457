//! Requests through interception, against servers with an authority of the tests' own.

mod clients;
mod ech;
mod hostile;
mod lab;
mod secret_use;
