//! Where chat templates are rendered. They are programs of users: what one takes of memory and time cannot be bounded within a
//! process (`{{ ([0] * 1000000000000)|list }}`), so that each prompt is made in one of its own.

mod messages;
mod process;

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

use super::template::{MAX_PROMPT_BYTES, PromptError};

pub use self::process::render_from_stdin;

/// Prompts that are made at a time.
const MAX_PROCESSES: usize = 4;
/// As long as one may take.
const MAX_TIME: Duration = Duration::from_secs(10);
/// Each byte of a prompt may be six in JSON.
const MAX_OUTPUT_BYTES: u64 = 6 * MAX_PROMPT_BYTES as u64 + 1024;

/// Renders chat templates in processes of their own: a program that calls [`render_from_stdin`].
#[derive(Debug, Clone)]
pub struct Renderer {
    program: PathBuf,
    arguments: Vec<OsString>,
    max_time: Duration,
    places: Arc<Semaphore>,
}

/// What a prompt is made of.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Chat<'c> {
    pub(super) template: Cow<'c, str>,
    pub(super) eos_token: Cow<'c, str>,
    /// As they came.
    #[serde(borrow)]
    pub(super) messages: &'c RawValue,
}

impl Renderer {
    /// By this program with these arguments. It gets no environment.
    pub fn new(program: impl Into<PathBuf>, arguments: impl IntoIterator<Item = OsString>) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().collect(),
            max_time: MAX_TIME,
            places: Arc::new(Semaphore::new(MAX_PROCESSES)),
        }
    }

    /// The prompt of a chat.
    ///
    /// # Errors
    /// The template does not take the chat, or takes more than it may; or the program does not run.
    pub(super) async fn prompt(&self, chat: &Chat<'_>) -> Result<String, PromptError> {
        let job = serde_json::to_vec(chat).map_err(io::Error::from)?;
        let _place = self.places.acquire().await.map_err(io::Error::other)?;
        // The process ends with its handle.
        let rendered = tokio::time::timeout(self.max_time, self.rendered(&job)).await;
        rendered.unwrap_or(Err(PromptError::TooMuch))
    }

    async fn rendered(&self, job: &[u8]) -> Result<String, PromptError> {
        let mut child = self.start()?;
        // One that has ended already says more than that it does not listen.
        if let Some(mut stdin) = child.stdin.take() {
            let _ = stdin.write_all(job).await;
        }
        let mut output = String::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(MAX_OUTPUT_BYTES).read_to_string(&mut output).await?;
        }
        let last = output.lines().next_back().unwrap_or_default();
        if let Ok(rendered) = serde_json::from_str(last) {
            return rendered;
        }
        let status = child.wait().await?;
        // A signal: of the kernel's, or its own because there is no memory.
        Err(match status.code() {
            None => PromptError::TooMuch,
            Some(_) => PromptError::Program(io::Error::other(status.to_string())),
        })
    }

    fn start(&self) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env_clear().kill_on_drop(true);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command.spawn()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Tells the run of a test that is to be the process of a prompt from others.
    const MARK: &str = "--test-threads=17";

    /// Memory of such a process: little, so that several at a time do not take all there is.
    const MEMORY_BYTES: u64 = 128 * 1024 * 1024;
    /// What takes too much takes too much processor time; how long that takes depends on what else runs.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// Makes prompts in processes of this very test program.
    pub(in crate::models) fn renderer() -> Renderer {
        let arguments = [
            "models::render::tests::makes_a_prompt",
            "--exact",
            "--nocapture",
            MARK,
        ];
        Renderer {
            max_time: PATIENCE,
            ..Renderer::new(std::env::current_exe().unwrap(), arguments.map(OsString::from))
        }
    }

    #[test]
    #[allow(clippy::exit)] // what tests print at their end would come last
    fn makes_a_prompt() {
        if std::env::args().any(|argument| argument == MARK) {
            process::render_within(MEMORY_BYTES).unwrap();
            std::process::exit(0);
        }
    }

    async fn render(template: &str) -> Result<String, String> {
        let chat = Chat {
            template: template.into(),
            eos_token: "</s>".into(),
            messages: serde_json::from_str(r#"[{"role": "user", "content": "é\n", "z": 1, "a": null}]"#)
                .unwrap(),
        };
        renderer().prompt(&chat).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn prompts_are_made_elsewhere() {
        let prompt = render("{{ messages[0].content }}{{ eos_token }}{{ messages[0]|tojson }}").await;
        let expected = "é\n</s>{\"role\": \"user\", \"content\": \"é\\n\", \"z\": 1, \"a\": null}";
        assert_eq!(prompt.as_deref(), Ok(expected));
        let refused = render("{{ raise_exception('no') }}").await;
        assert_eq!(
            refused,
            Err("Failed to render chat template: no (line 1)".to_owned())
        );
    }

    #[tokio::test]
    async fn a_template_that_takes_too_much_harms_nobody() {
        for template in [
            "{{ ([0] * 1000000000000)|list }}",
            "{{ ([0] * 4611686018427387904)|list }}",
            "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|join }}",
            "{{ ('x' * 90000000).replace('x', 'x' * 90000000) }}",
        ] {
            let refused = render(template).await.unwrap_err();
            assert_eq!(
                refused, "The chat template takes more memory or time than it may",
                "{template}"
            );
        }
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_no_fault_of_the_template() {
        let chat = Chat {
            template: "".into(),
            eos_token: "".into(),
            messages: RawValue::NULL,
        };
        let failed = Renderer::new("/nowhere", []).prompt(&chat).await.unwrap_err();
        assert!(matches!(failed, PromptError::Program(_)), "{failed}");
        let failed = Renderer::new("false", []).prompt(&chat).await.unwrap_err();
        assert!(matches!(failed, PromptError::Program(_)), "{failed}");
    }
}
