//! A kernel format string as a pattern.
//!
//! `{d}` stands for a decimal number, `{x}` for a hexadecimal one, `{s}` for any text of one line, `{*}` for any text
//! or none. `{pid}` is a number; `{comm}`, `{dev}` and `{unit}` are texts; these four say who suffered. A pattern
//! covers the whole message, so that a line that only looks alike does not match.

/// The longest name of a process. SOURCE: WORKER_DESC and TASK_COMM_LEN, format_task_name of workers: below 64.
const NAME_BYTES: usize = 64;

/// A compiled pattern.
#[derive(Debug)]
pub(crate) struct Pattern {
    pieces: Vec<Piece>,
}

#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Literal(&'static str),
    Decimal,
    Hexadecimal,
    Text,
    Any,
    Who(Who),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Pid,
    Comm,
    Dev,
    Unit,
}

impl Piece {
    /// Whether the placeholder may stand for `value`.
    fn fits(&self, value: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Text | Self::Who(Who::Comm | Who::Dev | Who::Unit) => !value.is_empty() && !value.contains('\n'),
            _ => !value.is_empty(),
        }
    }
}

/// Who suffered, as far as the message says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject<'a> {
    pub(crate) pid: Option<&'a str>,
    pub(crate) comm: Option<&'a str>,
    pub(crate) dev: Option<&'a str>,
    pub(crate) unit: Option<&'a str>,
}

impl<'a> Subject<'a> {
    fn note(&mut self, piece: &Piece, value: &'a str) {
        match piece {
            Piece::Who(Who::Pid) => self.pid = Some(value),
            Piece::Who(Who::Comm) => self.comm = Some(value),
            Piece::Who(Who::Dev) => self.dev = Some(value),
            Piece::Who(Who::Unit) => self.unit = Some(value),
            _ => {}
        }
    }

    /// For people: `llama-server[812]`, a device, a unit; empty where nobody is named.
    pub(crate) fn text(&self) -> String {
        match (self.unit, self.comm, self.pid, self.dev) {
            (Some(unit), ..) => unit.rsplit('/').next().unwrap_or(unit).to_owned(),
            (_, Some(comm), Some(pid), _) => format!("{comm}[{pid}]"),
            (_, Some(comm), None, _) => comm.to_owned(),
            (_, None, Some(pid), _) => format!("[{pid}]"),
            (.., Some(dev)) => dev.to_owned(),
            _ => String::new(),
        }
    }
}

impl Pattern {
    /// Compiles a pattern of the table.
    ///
    /// # Panics
    /// Where a placeholder is unknown: the table is ours, and a test compiles all of it.
    pub(crate) fn new(text: &'static str) -> Self {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((literal, tail)) = rest.split_once('{') {
            let (name, tail) = tail.split_once('}').expect("a placeholder is closed");
            if !literal.is_empty() {
                pieces.push(Piece::Literal(literal));
            }
            pieces.push(match name {
                "d" => Piece::Decimal,
                "x" => Piece::Hexadecimal,
                "s" => Piece::Text,
                "*" => Piece::Any,
                "pid" => Piece::Who(Who::Pid),
                "comm" => Piece::Who(Who::Comm),
                "dev" => Piece::Who(Who::Dev),
                "unit" => Piece::Who(Who::Unit),
                other => panic!("{other:?} is no placeholder"),
            });
            rest = tail;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Literal(rest));
        }
        Self { pieces }
    }

    /// Who suffered, if the whole of `message` matches.
    pub(crate) fn match_whole<'a>(&self, message: &'a str) -> Option<Subject<'a>> {
        let mut subject = Subject::default();
        match_rest(&self.pieces, message, &mut subject).then_some(subject)
    }

    /// The first letter of every message that can match, where it is fixed.
    pub(crate) fn first(&self) -> Option<u8> {
        match self.pieces.first()? {
            Piece::Literal(literal) => literal.bytes().next(),
            _ => None,
        }
    }
}

/// Whether `pieces` match all of `rest`.
fn match_rest<'a>(pieces: &[Piece], rest: &'a str, subject: &mut Subject<'a>) -> bool {
    let Some((piece, following)) = pieces.split_first() else { return rest.is_empty() };
    let length = match piece {
        Piece::Literal(literal) => {
            return rest.strip_prefix(literal).is_some_and(|rest| match_rest(following, rest, subject));
        }
        Piece::Decimal | Piece::Who(Who::Pid) => decimal(rest),
        Piece::Hexadecimal => hexadecimal(rest),
        Piece::Text | Piece::Any | Piece::Who(_) => match following {
            [] => rest.len(),
            // The last piece must stand at the end, wherever else it occurs.
            [Piece::Literal(next)] if rest.ends_with(next) => rest.len() - next.len(),
            [Piece::Literal(next), ..] if *piece == Piece::Who(Who::Comm) => {
                return match_name(next, following, rest, subject);
            }
            [Piece::Literal(next), ..] => rest.find(next).unwrap_or(0),
            _ => 0,
        },
    };
    let (value, rest) = rest.split_at(length);
    if !piece.fits(value) {
        return false;
    }
    subject.note(piece, value);
    match_rest(following, rest, subject)
}

/// A process may have in its name what follows it, so every place is tried; names are short.
fn match_name<'a>(next: &str, following: &[Piece], rest: &'a str, subject: &mut Subject<'a>) -> bool {
    for (end, _) in rest.match_indices(next).take_while(|(end, _)| *end <= NAME_BYTES) {
        let (name, rest) = rest.split_at(end);
        let piece = Piece::Who(Who::Comm);
        if piece.fits(name) && match_rest(following, rest, subject) {
            subject.note(&piece, name);
            return true;
        }
    }
    false
}

/// Length of the decimal number at the start of `text`.
fn decimal(text: &str) -> usize {
    let sign = usize::from(text.starts_with('-'));
    let digits = text[sign..].bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 { 0 } else { sign + digits }
}

/// Length of the hexadecimal number at the start of `text`.
fn hexadecimal(text: &str) -> usize {
    let prefix = if text.starts_with("0x") || text.starts_with("0X") { 2 } else { 0 };
    let digits = text[prefix..].bytes().take_while(u8::is_ascii_hexdigit).count();
    if digits == 0 { 0 } else { prefix + digits }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(pattern: &'static str, message: &str) -> Option<String> {
        Pattern::new(pattern).match_whole(message).map(|subject| subject.text())
    }

    #[test]
    fn a_pattern_covers_the_whole_message() {
        let pattern = "Page fault at {x} of type {s}";
        assert_eq!(subject(pattern, "Page fault at 0x0000000000012345 of type read").as_deref(), Some(""));
        for message in [
            "",
            "page fault at 0x1 of type read",
            "Page fault at z of type read",
            "Page fault at 0x1 of type ",
            "xPage fault at 0x1 of type read",
        ] {
            assert_eq!(subject(pattern, message), None, "{message}");
        }
        assert_eq!(subject("a {s}]", "a b]]").as_deref(), Some(""));
        assert_eq!(subject("n {d}", "n -12").as_deref(), Some(""));
        assert_eq!(subject("n {d}", "n -"), None);
        assert_eq!(subject("n {x}", "n 0x"), None);
    }

    #[test]
    fn whoever_suffered_is_named() {
        let pattern = "job timeout: pid={pid}, comm={comm}, seqno={d}";
        let message = "job timeout: pid=812, comm=llama, server, seqno=7";
        assert_eq!(
            subject(pattern, "job timeout: pid=812, comm=llama-server, seqno=7").as_deref(),
            Some("llama-server[812]")
        );
        assert_eq!(subject(pattern, message).as_deref(), Some("llama, server[812]"));
        assert_eq!(subject("on {unit},x", "on /system.slice/npud.service,x").as_deref(), Some("npud.service"));
    }
}
