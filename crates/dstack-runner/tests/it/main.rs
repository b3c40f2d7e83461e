//! A runner over real sockets, running real commands.

mod api;
mod end;
mod harness;
mod jobs;
mod logs;
mod stops;
