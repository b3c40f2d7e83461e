//! What is wrong with an installation, and what it has in clouds.

use dstack_model::diagnosis::{AccountInventory, Diagnosis, Finding, OwnedState};
use dstack_units::Time;

use crate::format::date;
use crate::ui::{Column, Role, Style, Table, Text};

/// Of what is said of a finding.
pub(crate) const INDENT: usize = 2;

/// What was looked at, and how much of it is wrong.
pub(crate) fn checks(diagnosis: &Diagnosis) -> Table {
    let mut table = Table::new(vec![
        Column::new("CHECK").style(Style::BOLD).no_wrap(),
        Column::new("RESULT").no_wrap(),
        Column::new("LOOKED AT").style(Style::SECONDARY),
    ]);
    for done in &diagnosis.checks {
        let of_check = diagnosis
            .findings
            .iter()
            .filter(|finding| finding.check == done.check);
        let result = match of_check.count() {
            0 => Text::new().role(Role::Success, "ok"),
            1 => Text::new().role(Role::Error, "1 finding"),
            count => Text::new().role(Role::Error, format!("{count} findings")),
        };
        table.row(vec![
            done.check.to_string().into(),
            result,
            done.looked_at.clone().into(),
        ]);
    }
    table
}

/// What a finding is about, since when, and what it costs.
pub(crate) fn title(finding: &Finding, now: Time) -> Text {
    let mut more = Vec::new();
    if !finding.projects.is_empty() {
        more.push(format!("of {}", finding.projects.join(", ")));
    }
    if let Some(since) = finding.since {
        more.push(format!("since {}", since_when(now, since)));
    }
    if let Some(price) = finding.price_per_hour {
        more.push(format!("${price:.2} an hour"));
    }
    let title = Text::new()
        .role(Role::Error, finding.check.to_string())
        .push(format!(": {}", finding.subject));
    match more.is_empty() {
        true => title,
        false => title.secondary(format!(" ({})", more.join("; "))),
    }
}

fn since_when(now: Time, since: Time) -> String {
    match date::ago(now, since) {
        ago if ago.is_empty() => date::full(since),
        ago => ago,
    }
}

/// What is wrong.
pub(crate) fn problem(finding: &Finding) -> Text {
    Text::from(format!("{}{}", " ".repeat(INDENT), finding.problem))
}

/// What to do.
pub(crate) fn remedy(finding: &Finding) -> Text {
    Text::from(" ".repeat(INDENT)).secondary(format!("→ {}", finding.remedy))
}

/// How much is wrong, and what it costs.
pub(crate) fn summary(findings: &[Finding]) -> Text {
    let count = match findings.len() {
        1 => "1 finding".to_owned(),
        count => format!("{count} findings"),
    };
    let price: f64 = findings.iter().filter_map(|finding| finding.price_per_hour).sum();
    match price > 0.0 {
        true => format!("{count}, which cost ${price:.2} an hour.").into(),
        false => format!("{count}.").into(),
    }
}

/// Which account it is.
pub(crate) fn account(account: &AccountInventory) -> Text {
    Text::new()
        .push_styled(account.backend.clone(), Style::BOLD)
        .secondary(format!(" (of {})", account.projects.join(", ")))
}

/// Why nobody knows what an account has, or all that it has.
pub(crate) fn unknown(account: &AccountInventory, error: &str) -> Text {
    let text = match account.things.is_empty() {
        true => format!("It is not known what is there: {error}"),
        false => format!("There may be more: {error}"),
    };
    Text::new().role(Role::Error, text)
}

/// All that an account has.
pub(crate) fn things(account: &AccountInventory, now: Time) -> Table {
    let mut table = Table::new(vec![
        Column::new("REGION").style(Style::SECONDARY),
        Column::new("KIND").no_wrap(),
        Column::new("ID"),
        Column::new("NAME"),
        Column::new("MADE").style(Style::SECONDARY),
        Column::new("PRICE").no_wrap(),
        Column::new("FOR"),
    ]);
    for thing in &account.things {
        let price = thing.price_per_hour;
        table.row(vec![
            or_dash(&thing.region),
            thing.kind.clone().into(),
            thing.id.clone().into(),
            or_dash(&thing.name),
            thing
                .made_at
                .map_or_else(|| "-".to_owned(), |at| since_when(now, at))
                .into(),
            price
                .map_or_else(|| "-".to_owned(), |price| format!("${price:.4}"))
                .into(),
            made_for(thing.state, thing.made_for.as_deref()),
        ]);
    }
    table
}

fn or_dash(text: &str) -> Text {
    match text {
        "" => "-".into(),
        text => text.into(),
    }
}

fn made_for(state: OwnedState, row: Option<&str>) -> Text {
    let row = row.unwrap_or("something that names it");
    match state {
        OwnedState::Known => row.into(),
        OwnedState::Duplicate => Text::new().role(Role::Warning, format!("{row}, which has another one")),
        OwnedState::Over => Text::new().role(Role::Warning, format!("{row}, which is over")),
        OwnedState::Unknown => Text::new().role(Role::Error, "nobody"),
    }
}

/// What an account costs.
pub(crate) fn total(account: &AccountInventory) -> Text {
    let unpriced = account
        .things
        .iter()
        .filter(|thing| thing.price_per_hour.is_none())
        .count();
    let count = match account.things.len() {
        0 => return "Nothing is there.".into(),
        1 => "1 thing".to_owned(),
        count => format!("{count} things"),
    };
    let total = format!("{count}: ${:.2} an hour", account.price_per_hour);
    match unpriced {
        0 => format!("{total}.").into(),
        _ => format!("{total}, and {unpriced} of which the cloud tells no price.").into(),
    }
}
