//! Counting and reporting how tests ended.

/// How a set of tests ended.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    /// Names of the tests that failed.
    pub(crate) failed: Vec<String>,
    /// Tests that could not run here, each with the reason.
    pub(crate) skipped: Vec<(String, String)>,
}

impl Tally {
    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    pub(crate) fn fail(&mut self, name: impl Into<String>) {
        self.failed.push(name.into());
    }

    pub(crate) fn skip(&mut self, name: impl Into<String>, reason: impl Into<String>) {
        self.skipped.push((name.into(), reason.into()));
    }

    pub(crate) fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
    }

    /// Prints skipped tests with their reasons, failed ones, and the counts as the last line.
    pub(crate) fn print(&self) {
        for (name, reason) in &self.skipped {
            println!("skipped  {name}: {reason}");
        }
        for name in &self.failed {
            println!("FAILED   {name}");
        }
        println!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped.len()
        );
    }
}
