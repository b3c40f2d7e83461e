//! Chat templates: Jinja, as model makers write it. They come with the services of users, so that one may not read anything
//! but the chat, run for long, or write much.

use std::io;

use minijinja::value::{Kwargs, StringInput, Value};
use minijinja::{Environment, Error, ErrorKind, State, context};
use serde::{Deserialize, Serialize};

use super::json::python_json;

/// Why there is no prompt.
#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
pub(super) enum TemplateError {
    /// The template is no template.
    #[error("Failed to compile chat template: {0}")]
    Compile(String),
    /// It refuses this chat, or fails on it.
    #[error("Failed to render chat template: {0}")]
    Render(String),
    /// It was ended.
    #[error("The chat template takes more memory or time than it may")]
    TooMuch,
    /// It was not tried.
    #[error("The server cannot run the program that makes prompts: {0}")]
    #[serde(skip)]
    Program(#[from] io::Error),
}

/// Bytes of a prompt at most.
pub(super) const MAX_PROMPT_BYTES: usize = 8 * 1024 * 1024;
const TOO_LONG: &str = "the prompt is too long";
/// Instructions for what is once in a template, and for each message.
const FUEL: u64 = 100_000;
const FUEL_OF_MESSAGE: u64 = 5_000;
/// Macros that call one another, at most.
const MAX_RECURSION: usize = 200;
/// The widest indentation.
const MAX_INDENT: usize = 64;

/// The text that makes the model write the next message.
///
/// # Errors
/// The template is wrong, does not take this chat, or does too much.
pub(super) fn prompt<M: Serialize>(
    template: &str,
    eos_token: &str,
    messages: &[M],
) -> Result<String, TemplateError> {
    let environment = environment(messages.len());
    let compiled = environment.template_from_str(template);
    let compiled = compiled.map_err(|error| TemplateError::Compile(told(&error)))?;
    let context = context! {
        messages => Value::from_serialize(messages),
        add_generation_prompt => true,
        eos_token => eos_token,
        // The model's server puts it there.
        bos_token => "",
    };
    let mut text = Bounded::default();
    let rendered = compiled.render_captured_to(context, &mut text);
    rendered.map_err(|error| TemplateError::Render(told(&error)))?;
    String::from_utf8(text.bytes).map_err(|error| TemplateError::Render(error.to_string()))
}

/// As that of Hugging Face's `transformers`.
fn environment<'t>(messages: usize) -> Environment<'t> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(python_method);
    let messages = u64::try_from(messages).unwrap_or(u64::MAX);
    environment.set_fuel(Some(
        FUEL.saturating_add(FUEL_OF_MESSAGE.saturating_mul(messages)),
    ));
    environment.set_recursion_limit(MAX_RECURSION);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", tojson);
    environment.add_filter("indent", indent);
    // Fields as wide as it likes.
    environment.remove_filter("format");
    environment
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Methods that texts, lists and dicts have in Python.
fn python_method(state: &State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if method == "format" {
        return Err(Error::from(ErrorKind::UnknownMethod));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

/// As Python writes JSON, and nothing escaped for HTML.
#[allow(clippy::needless_pass_by_value)] // as filters take it
fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let indent = indent.map(narrow).transpose()?;
    // What else Python's takes is as it is by default.
    let _: (Option<bool>, Option<bool>) = (options.get("ensure_ascii")?, options.get("sort_keys")?);
    options.assert_all_used()?;
    let text = python_json(value, indent).map_err(|error| {
        Error::new(ErrorKind::InvalidOperation, "cannot be written as JSON").with_source(error)
    })?;
    Ok(Value::from(text))
}

fn indent(
    text: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<Value, Error> {
    let named: Option<usize> = options.get("width")?;
    width.or(named).map(narrow).transpose()?;
    minijinja::filters::indent(text, width, first, blank, options)
}

fn narrow(width: usize) -> Result<usize, Error> {
    match width <= MAX_INDENT {
        true => Ok(width),
        false => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("indents by more than {MAX_INDENT}"),
        )),
    }
}

/// In a line; what templates raise stands at the end.
fn told(error: &Error) -> String {
    let text = match error.detail() {
        // Nothing else goes wrong with what is kept in memory.
        _ if error.kind() == ErrorKind::WriteFailure => TOO_LONG.to_owned(),
        Some(detail) if error.kind() == ErrorKind::InvalidOperation => detail.to_owned(),
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    match error.line() {
        Some(line) => format!("{text} (line {line})"),
        None => text,
    }
}

/// Takes so much and no more.
#[derive(Debug, Default)]
struct Bounded {
    bytes: Vec<u8>,
}

impl io::Write for Bounded {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + piece.len() > MAX_PROMPT_BYTES {
            return Err(io::Error::other(TOO_LONG));
        }
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use indexmap::IndexMap;

    use super::*;

    fn render(template: &str, messages: &str) -> Result<String, String> {
        let messages: Vec<IndexMap<String, Value>> = serde_json::from_str(messages).unwrap();
        prompt(template, "</s>", &messages).map_err(|error| error.to_string())
    }

    const CHAT: &str = r#"[
        {"role": "system", "content": "  Be kind. "},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello <b> & 'you'", "name": null},
        {"role": "user", "content": "Bye"}
    ]"#;

    #[test]
    fn templates_of_well_known_models_are_rendered_as_by_their_makers() {
        let chatml = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
        let expected = "<|im_start|>system\n  Be kind. <|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello <b> & 'you'<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(render(chatml, CHAT).unwrap(), expected);

        let llama = "{% if messages[0]['role'] == 'system' %}
            {% set loop_messages = messages[1:] %}
            {% set system_message = '<<SYS>>\n' + messages[0]['content'].strip() + '\n<</SYS>>\n\n' %}
        {% else %}
            {% set loop_messages = messages %}
            {% set system_message = '' %}
        {% endif %}
        {% for message in loop_messages %}
            {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
                {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
            {% endif %}
            {% if loop.index0 == 0 %}
                {% set content = system_message + message['content'] %}
            {% else %}
                {% set content = message['content'] %}
            {% endif %}
            {% if message['role'] == 'user' %}
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
            {% elif message['role'] == 'assistant' %}
{{ ' ' + content.strip() + ' ' + eos_token }}
            {% endif %}
        {% endfor %}";
        let expected =
            "[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi [/INST]\n Hello <b> & 'you' </s>\n[INST] Bye [/INST]\n";
        assert_eq!(render(llama, CHAT).unwrap(), expected);
        let refused = render(llama, r#"[{"role": "assistant", "content": ""}]"#).unwrap_err();
        assert!(refused.contains("Conversation roles must alternate"), "{refused}");
    }

    #[test]
    fn python_is_understood_as_far_as_templates_use_it() {
        for (template, expected) in [
            ("{{ messages[-1].content.upper() }}", "BYE"),
            (
                "{{ messages|length }}{{ messages[1:]|map(attribute='role')|join(',') }}",
                "4user,assistant,user",
            ),
            (
                "{% for key, value in messages[1].items() %}{{ key }}={{ value }};{% endfor %}",
                "role=user;content=Hi;",
            ),
            ("{{ messages[1]|tojson }}", r#"{"role": "user", "content": "Hi"}"#),
            (
                "{{ {'a': [1, '<é>', none, true]}|tojson }}",
                r#"{"a": [1, "<é>", null, true]}"#,
            ),
            (
                "{{ {'a': [1]}|tojson(indent=2) }}",
                "{\n  \"a\": [\n    1\n  ]\n}",
            ),
            (
                "{{ nothing }}{% for x in nothing %}{% endfor %}{{ nothing is defined }}",
                "False",
            ),
            ("{{ 'a\nb'|indent(2) }}", "a\n  b"),
            (
                "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role != 'user' %}{% continue %}{% endif %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
                "2",
            ),
            (
                "{{ messages[0].content.startswith('  Be') and 'Hi' in messages[1].content }}",
                "True",
            ),
            ("{{ messages[0].content.split('.')[0].lstrip() }}", "Be kind"),
            ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) }}", "<1>"),
            (
                "{{ messages[2].tool_calls is not defined or messages[2].get('tool_calls') is none }}",
                "True",
            ),
            (
                "{{ messages[2].name }}{{ true }}{{ 1 == 2 }}{{ 1.0 }}{{ 7 // 2 }}",
                "NoneTrueFalse1.03",
            ),
            ("a\n", "a"),
            ("{{ messages[0].content | trim }}\n", "Be kind."),
        ] {
            assert_eq!(render(template, CHAT).as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn a_template_reads_nothing_runs_no_longer_and_writes_no_more_than_it_may() {
        for (template, expected) in [
            ("{% include '/etc/passwd' %}", "template"),
            (
                "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
                "fuel",
            ),
            ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
            (
                "{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
                "the prompt is too long",
            ),
            ("{{ 'x'|indent(1000000000000) }}", "indents by more"),
            ("{{ 'x'|indent(width=1000000000000) }}", "indents by more"),
            ("{{ 'x' * 1000000000000 }}", "too large"),
            ("{{ [1]|tojson(indent=1000000000000) }}", "indents by more"),
            ("{{ '%1000000000000d'|format(1) }}", "unknown filter"),
            ("{{ '{:1000000000000}'.format(1) }}", "unknown method"),
            ("{{ nothing.at.all }}", "undefined"),
            ("{% if %}", "compile"),
        ] {
            let refused = render(template, CHAT).unwrap_err();
            assert!(refused.contains(expected), "{template}: {refused}");
        }
    }

    #[test]
    fn long_chats_have_fuel_enough() {
        let messages = vec![r#"{"role": "user", "content": "Hi"}"#; 20_000].join(",");
        let template = "{% for message in messages %}{% if message.role == 'user' and message.content is string %}{{ loop.index }}{{ message.content.strip() }}{% endif %}{% endfor %}";
        let text = render(template, &format!("[{messages}]")).unwrap();
        assert!(text.ends_with("20000Hi"));
    }
}
