//! Writes numbers in the text format of Prometheus, version 0.0.4.

use std::fmt::{Display, Write as _};

use super::histogram::Histogram;

/// A page of metrics in the making.
#[derive(Debug, Default)]
pub(crate) struct Page(String);

impl Page {
    /// The media type of a page.
    pub(crate) const MEDIA_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "counter");
        self.line(format_args!("{name} {value}"));
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, help, "gauge");
        self.line(format_args!("{name} {value}"));
    }

    /// One counter for each value of a label.
    pub(crate) fn counters<'a>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        self.family(name, help, "counter", label, values);
    }

    /// One gauge for each value of a label.
    pub(crate) fn gauges(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (impl Display, impl Display)>,
    ) {
        self.family(name, help, "gauge", label, values);
    }

    /// A histogram of values that are `scale` times as fine as the unit in the name.
    pub(crate) fn histogram(&mut self, name: &str, help: &str, values: &Histogram, scale: u32) {
        self.head(name, help, "histogram");
        for (bound, count) in values.up_to() {
            let bound = scaled(bound, scale);
            self.line(format_args!("{name}_bucket{{le=\"{bound}\"}} {count}"));
        }
        let count = values.count();
        self.line(format_args!("{name}_bucket{{le=\"+Inf\"}} {count}"));
        let sum = scaled(values.sum(), scale);
        self.line(format_args!("{name}_sum {sum}"));
        self.line(format_args!("{name}_count {count}"));
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }

    fn family(
        &mut self,
        name: &str,
        help: &str,
        kind: &str,
        label: &str,
        values: impl IntoIterator<Item = (impl Display, impl Display)>,
    ) {
        self.head(name, help, kind);
        for (of, value) in values {
            // Labels here are words of this server: nothing in them needs an escape.
            self.line(format_args!("{name}{{{label}=\"{of}\"}} {value}"));
        }
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing into a string never fails.
        let _ = self.0.write_fmt(line);
        self.0.push('\n');
    }
}

fn scaled(value: u64, scale: u32) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a float is what the format has, and 53 bits are plenty"
    )]
    let value = value as f64;
    value / f64::from(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_reads_as_the_format_wants_it() {
        let mut page = Page::default();
        page.counter("a_total", "One.", 1);
        page.counters("b_total", "Two.", "reason", [("x", 2), ("y", 3)]);
        let mut values = Histogram::new(&[500, 1_000_000]);
        values.record(200);
        values.record(2_000_000);
        page.histogram("c_seconds", "Three.", &values, 1_000_000);
        let expected = "\
            # HELP a_total One.\n# TYPE a_total counter\na_total 1\n\
            # HELP b_total Two.\n# TYPE b_total counter\n\
            b_total{reason=\"x\"} 2\nb_total{reason=\"y\"} 3\n\
            # HELP c_seconds Three.\n# TYPE c_seconds histogram\n\
            c_seconds_bucket{le=\"0.0005\"} 1\nc_seconds_bucket{le=\"1\"} 1\n\
            c_seconds_bucket{le=\"+Inf\"} 2\nc_seconds_sum 2.0002\nc_seconds_count 2\n";
        assert_eq!(page.into_text(), expected);
    }
}
