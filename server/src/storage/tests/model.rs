//! A disk in memory that keeps nothing but what was synced, and whose operations can fail.
//!
//! After a loss of power a file is any of the contents it may have had since its last sync, whole
//! or in part, and the directory is as after any of the changes since its last sync. A sync that
//! failed makes nothing durable, and neither does another one after it, until something is written
//! anew: the system may have dropped what it could not write, and forgotten that it did.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::storage::disk::Disk;

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It says so, and nothing has happened.
    Refused,
    /// It says so, and it has happened, or half of it.
    DoneInPart,
}

type Names = BTreeMap<&'static str, usize>;

#[derive(Clone, Debug)]
struct File {
    content: Vec<u8>,
    /// What may be on the disk.
    possible: BTreeSet<Vec<u8>>,
    sync_failed: bool,
}

#[derive(Clone, Debug, Default)]
struct State {
    files: Vec<File>,
    names: Names,
    possible_names: Vec<Names>,
    names_sync_failed: bool,
    operations: usize,
    syncs: usize,
    fault: Option<(usize, Fault)>,
}

/// See the module's description. Clones are the same disk.
#[derive(Clone, Debug)]
pub(crate) struct ModelDisk(Arc<Mutex<State>>);

impl ModelDisk {
    pub(crate) fn new() -> Self {
        Self::from(State {
            possible_names: vec![Names::new()],
            ..State::default()
        })
    }

    fn from(state: State) -> Self {
        Self(Arc::new(Mutex::new(state)))
    }

    fn with<T>(&self, run: impl FnOnce(&mut State) -> T) -> T {
        run(&mut self.0.lock().unwrap())
    }

    /// Operations so far.
    pub(crate) fn operations(&self) -> usize {
        self.with(|state| state.operations)
    }

    pub(crate) fn syncs(&self) -> usize {
        self.with(|state| state.syncs)
    }

    /// From now on this operation fails: 0 is the next one.
    pub(crate) fn fail_at(&self, operation: usize, fault: Fault) {
        self.with(|state| state.fault = Some((state.operations + operation, fault)));
    }

    /// The disk as another process finds it: nothing is lost, and nothing more is durable.
    pub(crate) fn after_process_end(&self) -> Self {
        let mut state = self.with(|state| state.clone());
        state.fault = None;
        Self::from(state)
    }

    /// Every disk that a loss of power now can leave behind.
    pub(crate) fn after_power_loss(&self) -> Vec<Self> {
        self.with(|state| {
            let mut disks = Vec::new();
            for names in &state.possible_names {
                let mut images = vec![Vec::new()];
                for (name, file) in names {
                    let possible = &state.files[*file].possible;
                    images = images
                        .into_iter()
                        .flat_map(|image: Vec<(&'static str, Vec<u8>)>| {
                            possible.iter().map(move |content| {
                                let mut image = image.clone();
                                image.push((*name, content.clone()));
                                image
                            })
                        })
                        .collect();
                }
                disks.extend(images);
            }
            disks.sort();
            disks.dedup();
            disks.into_iter().map(Self::of_files).collect()
        })
    }

    /// A disk on which exactly these files are durable.
    pub(crate) fn of_files(files: Vec<(&'static str, Vec<u8>)>) -> Self {
        let mut state = State::default();
        for (name, content) in files {
            state.names.insert(name, state.files.len());
            state.files.push(File {
                possible: BTreeSet::from([content.clone()]),
                content,
                sync_failed: false,
            });
        }
        state.possible_names = vec![state.names.clone()];
        Self::from(state)
    }
}

impl State {
    /// Counts an operation, and says how it fails if it does.
    fn begin(&mut self) -> Option<Fault> {
        let (at, fault) = self.fault.unwrap_or((usize::MAX, Fault::Refused));
        let fails = self.operations == at;
        self.operations += 1;
        fails.then_some(fault)
    }

    fn change_names(&mut self, change: impl FnOnce(&mut Names)) {
        change(&mut self.names);
        self.names_sync_failed = false;
        self.possible_names.push(self.names.clone());
    }
}

fn failure() -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, "injected")
}

impl Disk for ModelDisk {
    fn path(&self) -> &Path {
        Path::new("model")
    }

    fn read(&mut self, name: &'static str) -> io::Result<Option<Vec<u8>>> {
        self.with(|state| {
            if state.begin().is_some() {
                return Err(failure());
            }
            let file = state.names.get(name);
            Ok(file.map(|file| state.files[*file].content.clone()))
        })
    }

    fn write(&mut self, name: &'static str, bytes: &[u8]) -> io::Result<()> {
        self.with(|state| {
            let fault = state.begin();
            if fault == Some(Fault::Refused) {
                return Err(failure());
            }
            let file = match state.names.get(name) {
                Some(file) => *file,
                None => {
                    let file = state.files.len();
                    state.files.push(File {
                        content: Vec::new(),
                        possible: BTreeSet::from([Vec::new()]),
                        sync_failed: false,
                    });
                    state.change_names(|names| {
                        names.insert(name, file);
                    });
                    file
                }
            };
            let half = bytes.len() / 2;
            let file = &mut state.files[file];
            file.sync_failed = false;
            let mut with_hole = vec![0; half];
            with_hole.extend_from_slice(&bytes[half..]);
            file.possible.extend([Vec::new(), bytes[..half].to_vec()]);
            file.possible.extend([with_hole, vec![0; bytes.len()]]);
            if fault.is_some() {
                file.content = bytes[..half].to_vec();
                return Err(failure());
            }
            file.content = bytes.to_vec();
            file.possible.insert(bytes.to_vec());
            Ok(())
        })
    }

    fn sync(&mut self, name: &'static str) -> io::Result<()> {
        self.with(|state| {
            let fails = state.begin().is_some();
            state.syncs += 1;
            let file = *state.names.get(name).expect("the file is there");
            let file = &mut state.files[file];
            file.sync_failed |= fails;
            if fails {
                return Err(failure());
            }
            if !file.sync_failed {
                file.possible = BTreeSet::from([file.content.clone()]);
            }
            Ok(())
        })
    }

    fn rename(&mut self, from: &'static str, to: &'static str) -> io::Result<()> {
        self.with(|state| {
            let fault = state.begin();
            if fault == Some(Fault::Refused) {
                return Err(failure());
            }
            state.change_names(|names| {
                let file = names.remove(from).expect("the file is there");
                names.insert(to, file);
            });
            match fault {
                Some(_) => Err(failure()),
                None => Ok(()),
            }
        })
    }

    fn sync_folder(&mut self) -> io::Result<()> {
        self.with(|state| {
            let fails = state.begin().is_some();
            state.syncs += 1;
            state.names_sync_failed |= fails;
            if fails {
                return Err(failure());
            }
            if !state.names_sync_failed {
                state.possible_names = vec![state.names.clone()];
            }
            Ok(())
        })
    }
}
