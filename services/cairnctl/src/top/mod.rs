//! `cairnctl top`: a live view of the machine.
//!
//! ```text
//! a signal of a daemon, a second that passed ─▶ snapshot ─▶ rates since the one before ─▶ frame
//! q, ctrl-C, SIGTERM ─▶ the terminal as it was
//! ```
//! A daemon that is absent, or does not answer in time, is shown as that; the others are shown all the same.

mod draw;
mod snapshot;

use std::io::{IsTerminal as _, Write};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures_util::StreamExt as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use zbus::message::Type;
use zbus::{Connection, MatchRule, MessageStream};

use crate::Printer;
use draw::View;
use snapshot::{Rates, Snapshot};

/// Time between two views where no signal comes.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a signal waits for others: one fault makes several.
const GATHER: Duration = Duration::from_millis(50);
/// Keys that may wait.
const KEYS: usize = 16;

/// Shows the machine until the user has seen enough, or once.
pub(crate) async fn run<W: Write>(connection: &Connection, once: bool, printer: &mut Printer<'_, W>) -> Result<()> {
    if once {
        let view = View { now: Snapshot::read(connection).await, rates: None };
        return printer.print(&view.now, |_| draw::text(&view));
    }
    let (sender, mut views) = watch::channel(View::default());
    let observe = observe(connection, &sender);
    if printer.json {
        return tokio::select! {
            result = observe => result,
            result = stream(views, printer) => result,
        };
    }
    ensure!(std::io::stdout().is_terminal(), "the output is no terminal: use --once or --json");
    // From here on also a panic restores the terminal.
    let mut terminal = ratatui::try_init().context("prepare the terminal")?;
    let result = tokio::select! {
        result = observe => result,
        result = interact(&mut terminal, &mut views) => result,
    };
    ratatui::try_restore().context("restore the terminal")?;
    result
}

/// One JSON value per view.
async fn stream<W: Write>(mut views: watch::Receiver<View>, printer: &mut Printer<'_, W>) -> Result<()> {
    loop {
        views.changed().await?;
        let view = views.borrow_and_update().clone();
        printer.print(&view.now, |_| String::new())?;
    }
}

/// Looks at the daemons for ever: each second, and when one of them tells something, comes or goes.
async fn observe(connection: &Connection, views: &watch::Sender<View>) -> Result<()> {
    let mut signals = signals(connection).await?;
    let mut tick = tokio::time::interval(PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before: Option<(Instant, Snapshot)> = None;
    let mut rates = None;
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            signal = signals.recv() => {
                signal.context("the bus closed the connection")?;
                tokio::time::sleep(GATHER).await;
            }
        }
        let (now, at) = (Snapshot::read(connection).await, Instant::now());
        let elapsed = before.as_ref().map(|(then, _)| at.duration_since(*then));
        // Rates over less than a period would jump.
        if elapsed.is_none_or(|elapsed| elapsed >= PERIOD / 2) {
            if let (Some((_, earlier)), Some(elapsed)) = (&before, elapsed) {
                rates = Some(Rates::between(earlier, &now, elapsed));
            }
            before = Some((at, now.clone()));
        }
        if views.send(View { now, rates: rates.clone() }).is_err() {
            return Ok(());
        }
    }
}

/// Says that a daemon told something, came or went. Many at once are said once.
async fn signals(connection: &Connection) -> Result<mpsc::Receiver<()>> {
    let told = MatchRule::builder().msg_type(Type::Signal).path_namespace("/org/cairn").build()?;
    let owners = MatchRule::builder()
        .msg_type(Type::Signal)
        .sender("org.freedesktop.DBus")
        .member("NameOwnerChanged")
        .arg0ns("org.cairn")
        .build()?;
    let mut told = MessageStream::for_match_rule(told, connection, None).await?;
    let mut owners = MessageStream::for_match_rule(owners, connection, None).await?;
    let (say, said) = mpsc::channel(1);
    // A task of its own empties the streams: a connection whose streams are full reads nothing, replies neither.
    tokio::spawn(async move {
        loop {
            let message = tokio::select! {
                message = told.next() => message,
                message = owners.next() => message,
            };
            let gone = message.is_none() || say.is_closed();
            // One that waits already says it as well.
            let _ = say.try_send(());
            if gone {
                return;
            }
        }
    });
    Ok(said)
}

/// Draws each view until a key or a signal ends it.
async fn interact(terminal: &mut DefaultTerminal, views: &mut watch::Receiver<View>) -> Result<()> {
    let mut events = terminal_events()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        tokio::select! {
            changed = views.changed() => changed?,
            event = events.recv() => match event.context("the terminal is gone")?? {
                Event::Key(key) if ends(key) => return Ok(()),
                _ => {}
            },
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
        let view = views.borrow_and_update().clone();
        terminal.draw(|frame| draw::render(&view, frame.area(), frame.buffer_mut())).context("draw")?;
    }
}

fn ends(key: KeyEvent) -> bool {
    // A terminal in raw mode makes a key of ctrl-C, not a signal.
    let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

/// A thread of its own reads, because a read waits for the next key. It ends with the process.
fn terminal_events() -> Result<mpsc::Receiver<std::io::Result<Event>>> {
    let (send, events) = mpsc::channel(KEYS);
    std::thread::Builder::new().name("terminal".into()).spawn(move || {
        loop {
            let event = event::read();
            let failed = event.is_err();
            if send.blocking_send(event).is_err() || failed {
                return;
            }
        }
    })?;
    Ok(events)
}
