//! The route table of the server: method, path, permission, body and response of every route.
