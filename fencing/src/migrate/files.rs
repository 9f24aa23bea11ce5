//! The migrations as files, in the shapes that migration tools want.

/// How a migration tool wants its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// `0001_name.up.sql` and `0001_name.down.sql`, as sqlx reads them.
    Sqlx,
    /// `0001_name/up.sql` and `0001_name/down.sql`, as diesel_migrations reads them.
    Diesel,
    /// `V1__name.sql`, as refinery reads it. It has no way down.
    Refinery,
}

/// One step of the schema, forth and back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    name: String,
    up: String,
    down: String,
}

/// A file of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct File {
    /// Where it belongs in the folder of the migrations, with `/` between the parts.
    pub path: String,
    /// What it holds.
    pub content: String,
}

impl Migration {
    pub(crate) fn new(name: String, up: String, down: String) -> Self {
        Self { name, up, down }
    }

    /// Its name, without a number.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The SQL that applies it, any number of times.
    pub fn up(&self) -> &str {
        &self.up
    }

    /// The SQL that takes it back.
    pub fn down(&self) -> &str {
        &self.down
    }

    /// Its files, with the number that orders it among your own migrations.
    pub fn files(&self, format: Format, number: u64) -> Vec<File> {
        let name = &self.name;
        let file = |path: String, content: &str| File {
            path,
            content: content.to_owned(),
        };
        match format {
            Format::Sqlx => vec![
                file(format!("{number:04}_{name}.up.sql"), &self.up),
                file(format!("{number:04}_{name}.down.sql"), &self.down),
            ],
            Format::Diesel => vec![
                file(format!("{number:04}_{name}/up.sql"), &self.up),
                file(format!("{number:04}_{name}/down.sql"), &self.down),
            ],
            Format::Refinery => vec![file(format!("V{number}__{name}.sql"), &self.up)],
        }
    }

    /// Whether an entry of a folder of migrations is this one, under whatever number.
    pub fn is_named(&self, format: Format, entry: &str) -> bool {
        let name = match format {
            Format::Sqlx => format!("_{}.up.sql", self.name),
            Format::Diesel => format!("_{}", self.name),
            Format::Refinery => format!("__{}.sql", self.name),
        };
        let number = entry.strip_suffix(&name).and_then(number);
        number.is_some()
    }
}

/// One more than the highest number among the entries of a folder of migrations, whatever tool it
/// belongs to; 1 for an empty one.
pub fn next_number(entries: &[impl AsRef<str>]) -> u64 {
    let numbers = entries.iter().filter_map(|entry| {
        let (before, _) = entry.as_ref().split_once('_')?;
        number(before)
    });
    numbers.max().unwrap_or(0).saturating_add(1)
}

/// The number before the name: digits, which diesel groups with dashes, behind the letter of
/// refinery.
fn number(text: &str) -> Option<u64> {
    let text = text.strip_prefix(['V', 'U']).unwrap_or(text);
    text.replace('-', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn migration() -> Migration {
        Migration::new("highwater_fence".into(), "up".into(), "down".into())
    }

    #[test]
    fn the_files_have_the_names_that_the_tools_look_for() {
        let paths = |format, number| -> Vec<String> {
            let files = migration().files(format, number);
            files.into_iter().map(|file| file.path).collect()
        };
        assert_eq!(
            paths(Format::Sqlx, 7),
            [
                "0007_highwater_fence.up.sql",
                "0007_highwater_fence.down.sql"
            ]
        );
        assert_eq!(
            paths(Format::Diesel, 20_260_101_000_000),
            [
                "20260101000000_highwater_fence/up.sql",
                "20260101000000_highwater_fence/down.sql"
            ]
        );
        assert_eq!(paths(Format::Refinery, 12), ["V12__highwater_fence.sql"]);
    }

    #[test]
    fn it_is_found_again_under_any_number() {
        let migration = migration();
        for format in [Format::Sqlx, Format::Diesel, Format::Refinery] {
            let path = migration.files(format, 31).swap_remove(0).path;
            let entry = path.split('/').next().unwrap();
            assert!(migration.is_named(format, entry), "{entry}");
            assert!(!migration.is_named(format, "0001_own_highwater_fence"));
        }
    }

    #[test]
    fn the_next_number_follows_the_highest() {
        assert_eq!(next_number(&[""; 0]), 1);
        assert_eq!(
            next_number(&["README.md", "0009_a.sql", "0010_b.up.sql"]),
            11
        );
        assert_eq!(next_number(&["V3__a.sql", "V20__b.sql"]), 21);
        assert_eq!(next_number(&["2026-01-31-120000_a"]), 20_260_131_120_001);
    }
}
