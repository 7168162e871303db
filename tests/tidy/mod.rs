//! Rules of the repository that a compiler does not check. Each rule is a function over texts, tested on a text
//! that breaks it, and then asked about every file of the work tree.

mod documents;
mod packages;
mod rooms;
mod source;
mod tree;
