//! Where chat templates are rendered. They are programs of users: what one takes of memory and time cannot be bounded within a
//! process (`{{ ([0] * 1000000000000)|list }}`), so that each prompt is made in one of its own.

mod messages;
mod places;
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

use super::template::{MAX_PROMPT_BYTES, PromptError};

use self::places::{Busy, Places};

pub use self::process::render_from_stdin;

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
    places: Arc<Places>,
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
            places: Arc::default(),
        }
    }

    /// The prompt of a chat in this project.
    ///
    /// # Errors
    /// The template does not take the chat, or takes more than it may; or there is no place for it, or the program does not run.
    pub(super) async fn prompt(&self, project: &str, chat: &Chat<'_>) -> Result<String, PromptError> {
        let _place = self
            .places
            .place(project)
            .await
            .map_err(|Busy| PromptError::Busy)?;
        let job = serde_json::to_vec(chat).map_err(io::Error::from)?;
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
    use std::fs::File;

    use rustix::fs::{Mode, OFlags, open};

    use super::places::Place;
    use super::*;

    /// Tells the run of a test that is to be the process of a prompt from others.
    const MARK: &str = "--test-threads=17";
    /// And one that tells what it is in the place of the prompt.
    const MARK_OF_RANK: &str = "--test-threads=18";
    /// Memory of such a process: little, so that several at a time do not take all there is.
    const MEMORY_BYTES: u64 = 128 * 1024 * 1024;
    /// What takes too much takes too much processor time; how long that takes depends on what else runs.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// Makes prompts in processes of this very test program.
    pub(in crate::models) fn renderer() -> Renderer {
        renderer_with(MARK)
    }

    fn renderer_with(mark: &str) -> Renderer {
        let arguments = [
            "models::render::tests::makes_a_prompt",
            "--exact",
            "--nocapture",
            mark,
        ];
        Renderer {
            max_time: PATIENCE,
            ..Renderer::new(std::env::current_exe().unwrap(), arguments.map(OsString::from))
        }
    }

    impl Renderer {
        /// The place of a project.
        pub(in crate::models) async fn occupied(&self, project: &str) -> Place {
            self.places.place(project).await.unwrap()
        }
    }

    #[test]
    #[allow(clippy::exit)] // what tests print at their end would come last
    fn makes_a_prompt() {
        let Some(mark) = std::env::args().find(|argument| [MARK, MARK_OF_RANK].contains(&argument.as_str()))
        else {
            return;
        };
        process::render_within(MEMORY_BYTES).unwrap();
        if mark == MARK_OF_RANK {
            let priority = rustix::process::getpriority_process(None).unwrap();
            let victim = open("/proc/self/oom_score_adj", OFlags::RDONLY, Mode::empty()).unwrap();
            let victim = io::read_to_string(File::from(victim)).unwrap();
            println!("{{\"Ok\": \"{priority} {}\"}}", victim.trim());
        }
        std::process::exit(0);
    }

    #[tokio::test]
    async fn a_process_of_a_prompt_steps_back_behind_all_others() {
        let renderer = renderer_with(MARK_OF_RANK);
        let rank = rendered(&renderer, "{{ eos_token }}").await;
        assert_eq!(rank.as_deref(), Ok("19 1000"));
    }

    async fn render(template: &str) -> Result<String, String> {
        rendered(&renderer(), template).await
    }

    async fn rendered(renderer: &Renderer, template: &str) -> Result<String, String> {
        let chat = Chat {
            template: template.into(),
            eos_token: "</s>".into(),
            messages: serde_json::from_str(r#"[{"role": "user", "content": "é\n", "z": 1, "a": null}]"#)
                .unwrap(),
        };
        renderer
            .prompt("main", &chat)
            .await
            .map_err(|error| error.to_string())
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
        let failed = Renderer::new("/nowhere", [])
            .prompt("main", &chat)
            .await
            .unwrap_err();
        assert!(matches!(failed, PromptError::Program(_)), "{failed}");
        let failed = Renderer::new("false", [])
            .prompt("main", &chat)
            .await
            .unwrap_err();
        assert!(matches!(failed, PromptError::Program(_)), "{failed}");
    }
}
