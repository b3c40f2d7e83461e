//! Measuring our programs and the reference's, one after the other on the same machine.

mod clouds;
mod first_plans;
mod hosts;
mod live;
mod machines;
pub mod measures;
mod overload;
mod plans;
pub mod report;
mod scale;
mod services;
pub mod subject;

pub use report::{Report, Row, Unit};
pub use subject::Subject;
