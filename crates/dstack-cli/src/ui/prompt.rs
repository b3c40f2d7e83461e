//! Questions to the user: yes or no, a text, one of several.

use dstack_system::task;

use super::{Role, Text, Ui};
use crate::error::{CliError, ErrorKind};
use crate::interrupt;

impl Ui {
    /// Asks until the answer is yes or no. Ctrl-C: `Cancelled by user`, exit code 1.
    ///
    /// # Errors
    /// Ctrl-C, or the end of standard input.
    pub async fn confirm(&self, question: impl Into<Text>) -> Result<bool, CliError> {
        tokio::select! {
            answer = self.confirm_plainly(question.into()) => answer,
            () = interrupt::ctrl_c() => {
                self.say("\nCancelled by user");
                Err(CliError::printed(ErrorKind::Interrupted))
            }
        }
    }

    /// Asks until the answer is yes or no; whoever calls sees to Ctrl-C.
    ///
    /// # Errors
    /// The end of standard input.
    pub async fn confirm_plainly(&self, question: Text) -> Result<bool, CliError> {
        loop {
            let prompt = question.clone().push(" ").role(Role::Moving, "[y/n]").push(": ");
            self.raw(self.terminal.out.styled(&prompt).as_bytes());
            match self.read_line().await?.trim().to_lowercase().as_str() {
                "y" => return Ok(true),
                "n" => return Ok(false),
                _ => self.say(Text::new().role(Role::Error, "Please enter Y or N")),
            }
        }
    }

    /// Asks for a line of text.
    ///
    /// # Errors
    /// The end of standard input.
    pub async fn ask(&self, question: Text) -> Result<String, CliError> {
        let prompt = question.push(": ");
        self.raw(self.terminal.out.styled(&prompt).as_bytes());
        self.read_line().await
    }

    /// Asks for one of several; just Enter takes `current`.
    ///
    /// # Errors
    /// The end of standard input.
    pub async fn choose<'a>(
        &self,
        question: &str,
        choices: &'a [String],
        current: Option<&str>,
    ) -> Result<&'a String, CliError> {
        for (number, choice) in (1_usize..).zip(choices) {
            let mark = if current == Some(choice) { " (default)" } else { "" };
            self.say(format!("{number}. {choice}{mark}"));
        }
        loop {
            let range = format!("[1-{}]", choices.len());
            let answer = self
                .ask(Text::from(format!("{question} ")).role(Role::Moving, range))
                .await?;
            let answer = answer.trim();
            let chosen = match answer {
                "" => choices.iter().find(|choice| current == Some(choice)),
                _ => choices
                    .iter()
                    .enumerate()
                    .find(|(index, choice)| *choice == answer || (index + 1).to_string() == answer)
                    .map(|(_, choice)| choice),
            };
            match chosen {
                Some(chosen) => return Ok(chosen),
                None => self.say(Text::new().role(Role::Error, "Please enter one of the numbers")),
            }
        }
    }

    async fn read_line(&self) -> Result<String, CliError> {
        interrupt::watch();
        let terminal = self.terminal.clone();
        let read = task::blocking("prompt", move || {
            let mut line = String::new();
            let mut input = terminal.input.lock();
            input.read_line(&mut line).map(|count| (count, line))
        });
        match read.await {
            Ok(Ok((count, line))) if count > 0 => Ok(line),
            _ => Err(CliError::new(
                ErrorKind::NoConfirmation,
                "cannot ask for confirmation: standard input is closed",
            )
            .hint("pass `-y` to answer all questions with yes")),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ui::Ui;

    #[tokio::test]
    async fn asks_again_until_it_understands() {
        let (ui, captured) = Ui::captured(80, "maybe\nY\n");
        assert!(ui.confirm("Go?").await.unwrap());
        assert_eq!(captured.out(), "Go? [y/n]: Please enter Y or N\nGo? [y/n]: ");
    }

    #[tokio::test]
    async fn one_of_several_is_chosen_by_number_or_name() {
        let choices = ["github".to_owned(), "okta".to_owned()];
        for (input, current, chosen) in [
            ("3\n2\n", None, "okta"),
            ("\ngithub\n", None, "github"),
            ("\n", Some("okta"), "okta"),
        ] {
            let (ui, captured) = Ui::captured(80, input);
            assert_eq!(ui.choose("Which?", &choices, current).await.unwrap(), chosen);
            assert!(
                captured.out().contains("1. github\n2. okta"),
                "{}",
                captured.out()
            );
        }
    }

    #[tokio::test]
    async fn a_closed_input_is_an_error_with_a_remedy() {
        let (ui, _captured) = Ui::captured(80, "");
        assert!(
            ui.confirm("Go?")
                .await
                .unwrap_err()
                .hint_text()
                .unwrap()
                .contains("-y")
        );
    }
}
