//! Checks that read rather than run: the form of the code, the documents, the table of keys, the manifests of packages,
//! and the parsers of outside bytes on the corpora of the fuzz targets.

mod circles;
mod corpus;
mod examples;
mod form;
mod keys;
mod manifests;
mod methods;
mod published;
mod readme;
mod words;
mod workflows;
