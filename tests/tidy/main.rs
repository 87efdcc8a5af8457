//! What is read rather than run: the form of the code, the documents, the reference of keys, and the readers of bytes from
//! outside on the corpora of the fuzz targets.

mod corpus;
mod form;
mod readme;
mod reference;
