//! Reads a folder of `*.history` files line by line, without ever holding a file in memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::facts::{Facts, HistoryFile, Line};
use crate::history::Record;

/// More than this of one line is a mistake, not a record.
const LONGEST_LINE: u64 = 1 << 30;

/// Where the lines are.
#[derive(Debug, Default)]
pub struct Sources {
    files: Vec<Source>,
    /// Where each line begins in its file.
    starts: Vec<u64>,
}

#[derive(Debug)]
struct Source {
    path: PathBuf,
    first: Line,
}

/// Reads all of a folder.
///
/// # Errors
/// The folder or a file cannot be read, there is no history in it, or it has more lines or messages than can be numbered. A line
/// that is no record is no error: the verdict says so.
pub fn read(folder: &Path) -> io::Result<(Facts, Sources)> {
    let (mut facts, mut sources) = (Facts::default(), Sources::default());
    for path in histories(folder)? {
        read_file(&path, &mut facts, &mut sources)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    }
    Ok((facts, sources))
}

/// In the order of their names, so that two looks at one folder say the same.
fn histories(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let wrong = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
    let mut paths = Vec::new();
    for entry in folder.read_dir().map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.extension().is_some_and(|extension| extension == "history") {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        let text = format!("{}: there is no *.history file here", folder.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    Ok(paths)
}

fn read_file(path: &Path, facts: &mut Facts, sources: &mut Sources) -> io::Result<()> {
    let mut lines = BufReader::with_capacity(1 << 20, File::open(path)?);
    let first = next_line(sources)?;
    sources.files.push(Source { path: path.to_owned(), first });
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    facts.files.push(HistoryFile { name, first });
    let (mut offset, mut text) = (0, Vec::new());
    loop {
        text.clear();
        let length = (&mut lines).take(LONGEST_LINE).read_until(b'\n', &mut text)?;
        if length == 0 {
            return Ok(());
        }
        let number = next_line(sources)?;
        sources.starts.push(offset);
        offset += length as u64;
        take_line(facts, number, &text);
        if facts.ids.count() >= u32::MAX as usize || facts.places.len() > usize::from(u16::MAX) {
            return Err(io::Error::other("more messages or places than can be numbered"));
        }
    }
}

/// The number that the next line gets.
fn next_line(sources: &Sources) -> io::Result<Line> {
    u32::try_from(sources.starts.len())
        .ok()
        .filter(|line| *line < u32::MAX)
        .ok_or_else(|| io::Error::other("more lines than can be numbered"))
}

/// Takes one line, with its line break if it has one. Only the last one of a file has none: what is not a record there is
/// torn.
pub(crate) fn take_line(facts: &mut Facts, number: Line, text: &[u8]) {
    match serde_json::from_slice::<Record>(text) {
        Ok(record) => {
            facts.times.push(record.t);
            facts.take(number, record);
        }
        Err(error) => {
            facts.times.push(facts.times.last().copied().unwrap_or_default());
            if text.ends_with(b"\n") {
                facts.unreadable.push((number, error.to_string()));
            } else {
                facts.torn.push(number);
            }
        }
    }
}

/// A line as it stands in its file.
pub struct Shown {
    /// The file's name.
    pub file: String,
    /// The line, counted from 1.
    pub line: u32,
    /// What it says.
    pub text: Vec<u8>,
}

impl Sources {
    /// Reads a line again.
    ///
    /// # Errors
    /// The file cannot be read any more.
    pub fn show(&self, line: Line) -> io::Result<Shown> {
        let index = self.files.partition_point(|file| file.first <= line).saturating_sub(1);
        let (Some(source), Some(start)) = (self.files.get(index), self.starts.get(line as usize)) else {
            return Err(io::Error::other("there is no such line"));
        };
        let mut file = File::open(&source.path)?;
        file.seek(SeekFrom::Start(*start))?;
        let mut text = Vec::new();
        BufReader::new(file).take(LONGEST_LINE).read_until(b'\n', &mut text)?;
        let file = source.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Shown { file, line: line - source.first + 1, text })
    }
}
