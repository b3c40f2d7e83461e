//! Where chat templates are rendered. They are programs of users: what one takes of memory and time cannot be bounded within a
//! process (`{{ ([0] * 1000000000000)|list }}`), so that each prompt is made in one of its own.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use minijinja::Value;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

use super::template::{MAX_PROMPT_BYTES, TemplateError, prompt};

/// A message as templates see it, with all of its members in their order.
pub(super) type Message = IndexMap<String, Value>;

/// Prompts that are made at a time.
const MAX_PROCESSES: usize = 4;
/// What a prompt may take.
const MAX_MEMORY_BYTES: u64 = 1024 * 1024 * 1024;
const MAX_CPU_SECONDS: u64 = 5;
const MAX_TIME: Duration = Duration::from_secs(10);
/// Each byte of a prompt may be six in JSON.
const MAX_OUTPUT_BYTES: u64 = 6 * MAX_PROMPT_BYTES as u64 + 1024;

/// Renders chat templates in processes of their own: a program that calls [`render_from_stdin`].
#[derive(Debug, Clone)]
pub struct Renderer {
    program: PathBuf,
    arguments: Vec<OsString>,
    places: Arc<Semaphore>,
}

/// What a prompt is made of.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Chat {
    pub(super) template: String,
    pub(super) eos_token: String,
    pub(super) messages: Vec<Message>,
}

impl Renderer {
    /// By this program with these arguments. It gets no environment.
    pub fn new(program: impl Into<PathBuf>, arguments: impl IntoIterator<Item = OsString>) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().collect(),
            places: Arc::new(Semaphore::new(MAX_PROCESSES)),
        }
    }

    /// The prompt of a chat.
    ///
    /// # Errors
    /// The template does not take the chat, or takes more than it may; or the program does not run.
    pub(super) async fn prompt(&self, chat: &Chat) -> Result<String, TemplateError> {
        let job = serde_json::to_vec(chat).map_err(io::Error::from)?;
        let _place = self.places.acquire().await.map_err(io::Error::other)?;
        // The process ends with its handle.
        let rendered = tokio::time::timeout(MAX_TIME, self.rendered(&job)).await;
        rendered.unwrap_or(Err(TemplateError::TooMuch))
    }

    async fn rendered(&self, job: &[u8]) -> Result<String, TemplateError> {
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
            None => TemplateError::TooMuch,
            Some(_) => TemplateError::Program(io::Error::other(status.to_string())),
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

/// The other side of [`Renderer`]: makes one prompt of what stands in the standard input. The process is bounded from now on, and does
/// nothing else.
///
/// # Errors
/// The input is not of a [`Renderer`], or nobody reads the output.
pub fn render_from_stdin() -> io::Result<()> {
    limit(Resource::As, MAX_MEMORY_BYTES)?;
    limit(Resource::Cpu, MAX_CPU_SECONDS)?;
    limit(Resource::Core, 0)?;
    let mut job = Vec::new();
    io::stdin().lock().read_to_end(&mut job)?;
    let chat: Chat = serde_json::from_slice(&job)?;
    // Some of what is too much is a panic.
    let rendered = catch_unwind(AssertUnwindSafe(|| {
        prompt(&chat.template, &chat.eos_token, &chat.messages)
    }));
    let rendered = rendered.unwrap_or(Err(TemplateError::TooMuch));
    let mut output = io::stdout().lock();
    writeln!(output, "{}", serde_json::to_string(&rendered)?)?;
    output.flush()
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let most = getrlimit(resource)
        .maximum
        .map_or(most, |maximum| maximum.min(most));
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    Ok(setrlimit(resource, limit)?)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Tells the run of a test that is to be the process of a prompt from others.
    const MARK: &str = "--test-threads=17";

    /// Makes prompts in processes of this very test program.
    pub(in crate::models) fn renderer() -> Renderer {
        let arguments = [
            "models::render::tests::makes_a_prompt",
            "--exact",
            "--nocapture",
            MARK,
        ];
        Renderer::new(std::env::current_exe().unwrap(), arguments.map(OsString::from))
    }

    #[test]
    #[allow(clippy::exit)] // what tests print at their end would come last
    fn makes_a_prompt() {
        if std::env::args().any(|argument| argument == MARK) {
            render_from_stdin().unwrap();
            std::process::exit(0);
        }
    }

    async fn render(template: &str) -> Result<String, String> {
        let chat = Chat {
            template: template.to_owned(),
            eos_token: "</s>".to_owned(),
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
            template: String::new(),
            eos_token: String::new(),
            messages: Vec::new(),
        };
        let failed = Renderer::new("/nowhere", []).prompt(&chat).await.unwrap_err();
        assert!(matches!(failed, TemplateError::Program(_)), "{failed}");
        let failed = Renderer::new("false", []).prompt(&chat).await.unwrap_err();
        assert!(matches!(failed, TemplateError::Program(_)), "{failed}");
    }
}
