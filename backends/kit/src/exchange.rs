use std::sync::Arc;

use dstack_system::task;

use crate::faults::die;
use crate::{Fault, Faults};

/// What becomes of one exchange with a cloud that is not asked over HTTP.
#[derive(Debug)]
pub enum Exchange<T> {
    /// It cannot be reached.
    NotSent,
    /// It was sent, and there is no answer.
    Lost,
    /// It says that something of its own is wrong, and has done nothing or all.
    Failed,
    /// The answer is to be cut off in the middle.
    CutOff(T),
    /// What the other side answered, whole.
    Answered(T),
}

impl Faults {
    /// Carries out one exchange, or does to it what is planned.
    pub async fn exchange<T: Send + 'static>(
        self: &Arc<Self>,
        carry: impl FnOnce() -> T + Send + 'static,
    ) -> Exchange<T> {
        let fault = self.next();
        match fault {
            Some(Fault::NotSent) => return Exchange::NotSent,
            Some(Fault::Lost) => return Exchange::Lost,
            Some(Fault::Refused(_)) => return Exchange::Failed,
            Some(Fault::KilledBefore) => return die().await,
            Some(Fault::Late(late)) => {
                // It is on its way, whatever becomes of its caller.
                task::spawn("late exchange", async move {
                    tokio::time::sleep(late).await;
                    carry();
                });
                return Exchange::Lost;
            }
            _ => {}
        }
        let carried = carry();
        match fault {
            Some(Fault::AnswerLost) => Exchange::Lost,
            Some(Fault::DoneAndRefused(_) | Fault::DoneAndBusy) => Exchange::Failed,
            Some(Fault::Malformed) => Exchange::CutOff(carried),
            Some(Fault::KilledAfter) => die().await,
            _ => Exchange::Answered(carried),
        }
    }
}
