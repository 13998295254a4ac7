//! A view as a frame: sections of text, one below the other, two columns where there is room.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Widget as _};

use super::snapshot::{Gpu, Health, Npu, Rates, Section, Snapshot, Update};

/// Columns of a frame that is printed as text.
const COLUMNS: u16 = 100;
/// From so many columns on there are two sections beside each other.
const WIDE: u16 = 120;
/// Cells of a bar.
const BAR: usize = 10;

/// What is drawn.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) now: Snapshot,
    /// Nothing where there was no snapshot before.
    pub(super) rates: Option<Rates>,
}

/// A frame as text, without colours.
pub(super) fn text(view: &View) -> String {
    let rows = column(view).iter().chain([&incidents(&view.now.health)]).map(height).sum::<u16>() + header(view).1;
    let area = Rect::new(0, 0, COLUMNS, rows);
    let mut buffer = Buffer::empty(area);
    render(view, area, &mut buffer);
    let row = |y| (0..COLUMNS).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned() + "\n";
    (0..rows).map(row).collect()
}

/// Draws a frame.
pub(super) fn render(view: &View, area: Rect, buffer: &mut Buffer) {
    let (head, head_rows) = header(view);
    let mut left = column(view);
    let right = if area.width >= WIDE { left.split_off(left.len() / 2) } else { Vec::new() };
    let rows = |sections: &[Titled]| sections.iter().map(height).sum::<u16>();
    let middle = rows(&left).max(rows(&right));
    let [top, body, bottom] =
        Layout::vertical([Constraint::Length(head_rows), Constraint::Max(middle), Constraint::Min(3)]).areas(area);
    Paragraph::new(head).render(top, buffer);
    if right.is_empty() {
        stack(left, body, buffer);
    } else {
        let [one, other] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(body);
        stack(left, one, buffer);
        stack(right, other, buffer);
    }
    stack(vec![incidents(&view.now.health)], bottom, buffer);
}

/// A section: its title and its lines.
type Titled = (String, Vec<Line<'static>>);

fn height((_, lines): &Titled) -> u16 {
    u16::try_from(lines.len()).unwrap_or(u16::MAX - 2) + 2
}

fn stack(sections: Vec<Titled>, area: Rect, buffer: &mut Buffer) {
    let areas = Layout::vertical(sections.iter().map(|section| Constraint::Max(height(section)))).split(area);
    for ((title, lines), area) in sections.into_iter().zip(areas.iter()) {
        Paragraph::new(lines).block(Block::bordered().title(format!(" {title} "))).render(*area, buffer);
    }
}

fn header(view: &View) -> (Vec<Line<'static>>, u16) {
    let mut lines = match &view.now.health {
        Section::There(health) => {
            let state = Span::styled(format!(" {} ", health.state), state_style(&health.state).reversed());
            let rest = format!("  thermal level {}, last start: {}", health.thermal_level, health.reset_reason);
            let reasons = health.reasons.iter().map(|reason| Line::from(format!("   {reason}")));
            [Line::from(vec![state, Span::raw(rest)])].into_iter().chain(reasons).collect()
        }
        Section::Absent(why) => vec![Line::from(format!(" unknown   healthd: {why}"))],
    };
    lines.push(Line::from(" q ends").dim());
    let rows = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    (lines, rows)
}

fn state_style(state: &str) -> Style {
    match state {
        "healthy" => Style::new().fg(Color::Green),
        "degraded" => Style::new().fg(Color::Yellow),
        _ => Style::new().fg(Color::Red),
    }
}

fn severity_style(severity: &str) -> Style {
    match severity {
        "note" => Style::new(),
        "warning" => Style::new().fg(Color::Yellow),
        _ => Style::new().fg(Color::Red),
    }
}

/// All sections but the incidents. A GPU's daemon that does not run is not missed: not every image has one.
fn column(view: &View) -> Vec<Titled> {
    let Snapshot { health, npu, gpu, update } = &view.now;
    let mut sections = vec![
        ("Machine".to_owned(), or_absent(health, machine)),
        ("Temperatures".to_owned(), or_absent(health, temperatures)),
        ("NPU".to_owned(), or_absent(npu, |npu| npu_lines(npu, view.rates.as_ref()))),
    ];
    if let Section::There(gpu) = gpu {
        sections.push(("GPU".to_owned(), gpu_lines(gpu)));
    }
    sections.push(("Update".to_owned(), or_absent(update, update_lines)));
    sections
}

fn or_absent<T>(section: &Section<T>, lines: impl Fn(&T) -> Vec<Line<'static>>) -> Vec<Line<'static>> {
    match section {
        Section::There(there) => lines(there),
        Section::Absent(why) => vec![Line::from(why.clone()).dim()],
    }
}

fn bar(percent: f64) -> String {
    // CAST: clamped to the cells of a bar.
    let full = (percent / 100.0 * BAR as f64).round().clamp(0.0, BAR as f64) as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(BAR - full))
}

/// Items side by side, `columns` in a line.
fn grid(items: &[String], columns: usize) -> Vec<Line<'static>> {
    items.chunks(columns).map(|items| Line::from(items.join("   "))).collect()
}

/// What a gauge is of, and its value, for all gauges of a name.
fn gauges<'a>(health: &'a Health, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
    health.gauges.iter().filter_map(move |(key, value)| Some((key.strip_prefix(name)?.strip_prefix('.')?, *value)))
}

fn machine(health: &Health) -> Vec<Line<'static>> {
    let mut cores: Vec<(&str, f64)> = gauges(health, "cpu-percent").collect();
    cores.sort_by_key(|(name, _)| (name.len(), *name));
    let cores: Vec<String> =
        cores.into_iter().map(|(name, percent)| format!("{name:6} {} {percent:3.0} %", bar(percent))).collect();
    let mut lines = grid(&cores, 3);
    let memory = |of| health.gauges.get(&format!("memory-bytes.{of}")).copied();
    if let (Some(total), Some(available)) = (memory("total"), memory("available")) {
        let (used, gib) = (total - available, f64::from(1 << 30));
        let percent = 100.0 * used / total;
        lines.push(Line::from(format!("memory {} {:.1} of {:.1} GiB", bar(percent), used / gib, total / gib)));
    }
    for (title, name, unit) in [
        ("waits", "pressure-some", " %"),
        ("free", "free-percent", " %"),
        ("wear", "wear-percent", " %"),
        ("spare", "nvme-spare-percent", " %"),
        ("errors", "nvme-media-errors", ""),
        ("links", "link-up", ""),
    ] {
        let items: Vec<String> = gauges(health, name)
            .map(|(of, value)| match name {
                "link-up" => format!("{of} {}", if value > 0.0 { "up" } else { "down" }),
                _ => format!("{of} {value:.0}{unit}"),
            })
            .collect();
        if !items.is_empty() {
            lines.push(Line::from(format!("{title:6} {}", items.join(", "))));
        }
    }
    if let Some(connected) = health.gauges.get("mqtt-connected") {
        let waiting = health.gauges.get("reports-waiting").copied().unwrap_or(0.0);
        let state = if *connected > 0.0 { "connected" } else { "away" };
        lines.push(Line::from(format!("broker {state}, {waiting:.0} reports wait")));
    }
    lines
}

fn temperatures(health: &Health) -> Vec<Line<'static>> {
    let zones: Vec<String> =
        gauges(health, "celsius").map(|(zone, celsius)| format!("{zone:20} {celsius:5.1} °C")).collect();
    if zones.is_empty() { vec![Line::from("none is measured").dim()] } else { grid(&zones, 3) }
}

fn npu_lines(npu: &Npu, rates: Option<&Rates>) -> Vec<Line<'static>> {
    let Npu { description, driver_version, contexts, queue_depth, queue_capacity, thermal_level, .. } = npu;
    let count = |name: &str| npu.counters.get(name).copied().unwrap_or(0);
    let mut lines = vec![
        Line::from(format!("{description}, driver {driver_version}")),
        Line::from(format!(
            "queue  {} {queue_depth} of {queue_capacity}, thermal level {thermal_level}",
            bar(100.0 * f64::from(*queue_depth) / f64::from(*queue_capacity))
        )),
    ];
    if let Some(rates) = rates {
        let percent = 100.0 * rates.busy / f64::from(*contexts);
        lines.push(Line::from(format!("load   {} {percent:.0} % of {contexts} contexts", bar(percent))));
        lines.push(Line::from(format!("rate   {:.1} requests/s", rates.requests)));
    }
    lines.push(Line::from(format!(
        "total  {} requests, {} trusted, {} after a retry, {} untrusted, {} refused, {} failed",
        count("requests"),
        count("trusted"),
        count("retried"),
        count("untrusted"),
        count("queue-full"),
        count("failed"),
    )));
    for (context, model, job, micros) in &npu.in_flight {
        let seconds = *micros as f64 / 1e6;
        lines.push(Line::from(format!("context {context}: {model} ({job}), {seconds:.1} s")));
    }
    for model in &npu.models {
        let mib = model.memory_bytes as f64 / f64::from(1 << 20);
        let rate = rates.and_then(|rates| rates.models.get(&model.name));
        let rate = rate.map_or(String::new(), |rate| format!(", {rate:.1}/s"));
        let (name, version, answers) = (&model.name, &model.version, model.answers);
        lines.push(Line::from(format!("model  {name:16} {version:8} {mib:6.1} MiB  {answers} answered{rate}")));
    }
    lines
}

fn gpu_lines(gpu: &Gpu) -> Vec<Line<'static>> {
    let line = |(object, properties): (&String, &std::collections::BTreeMap<String, String>)| {
        let shown: Vec<String> = properties.iter().map(|(name, value)| format!("{name} {value}")).collect();
        Line::from(format!("{object:16} {}", shown.join(", ")))
    };
    gpu.iter().map(line).collect()
}

fn update_lines(update: &Update) -> Vec<Line<'static>> {
    let Update { state, version, slot, target_version, percent, doing, reason } = update;
    let mut lines = vec![Line::from(format!("{state}: {version} runs from slot {slot}"))];
    if state == "installing" {
        lines.push(Line::from(format!("{} {percent} % of {target_version}: {doing}", bar(f64::from(*percent)))));
    }
    if !reason.is_empty() {
        lines.push(Line::from(reason.clone()));
    }
    lines
}

/// The newest first.
fn incidents(health: &Section<Health>) -> Titled {
    let Some(health) = health.get() else { return ("Incidents".into(), vec![Line::from("unknown").dim()]) };
    let mut lines = Vec::new();
    for incident in health.incidents.iter().rev() {
        lines.push(Line::styled(incident.headline(), severity_style(&incident.severity)));
    }
    if lines.is_empty() {
        lines.push(Line::from("none").dim());
    }
    let count = health.counters.get("incidents").copied().unwrap_or(0);
    (format!("Incidents, {count} so far"), lines)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::snapshot::Model;
    use super::*;

    fn npu(answers: u64, micros: u64) -> Section<Npu> {
        Section::There(Npu {
            description: "simulated".into(),
            driver_version: "0.0.0".into(),
            contexts: 3,
            queue_depth: 8,
            queue_capacity: 32,
            thermal_level: "normal".into(),
            counters: [("requests".to_owned(), answers), ("npu-us".to_owned(), micros)].into(),
            in_flight: vec![(1, "mnist".into(), "convolution".into(), 1_500_000)],
            models: vec![Model { name: "mnist".into(), version: "1.0.0".into(), answers, memory_bytes: 1 << 20 }],
        })
    }

    fn health() -> Section<Health> {
        Section::There(Health {
            state: "degraded".into(),
            reasons: vec!["the NPU is hot".into()],
            thermal_level: "throttled".into(),
            reset_reason: "clean".into(),
            gauges: [("cpu-percent.cpu0".to_owned(), 50.0), ("celsius.npu-thermal".to_owned(), 86.25)].into(),
            counters: [("incidents".to_owned(), 7)].into(),
            incidents: Vec::new(),
        })
    }

    /// What a terminal of this size shows, and what is printed as text.
    fn frame(view: &View, columns: u16, rows: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| render(view, frame.area(), frame.buffer_mut())).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn rates_are_what_changed_in_a_second() {
        let before = Snapshot { npu: npu(10, 1_000_000), ..Snapshot::default() };
        let now = Snapshot { npu: npu(30, 4_000_000), ..Snapshot::default() };
        let rates = Rates::between(&before, &now, Duration::from_secs(2));
        assert_eq!((rates.requests, rates.busy, rates.models["mnist"]), (10.0, 1.5, 10.0));
        // A daemon that started anew, or was away, has no rate below nothing.
        assert_eq!(Rates::between(&now, &before, Duration::from_secs(2)).requests, 0.0);
        assert_eq!(Rates::between(&Snapshot::default(), &now, Duration::from_secs(2)), Rates::default());
    }

    #[test]
    fn a_frame_has_everything_in_one_column_or_in_two() {
        let now = Snapshot { npu: npu(30, 4_000_000), health: health(), ..Snapshot::default() };
        let rates = Some(Rates { requests: 10.0, busy: 1.5, models: [("mnist".to_owned(), 2.5)].into() });
        let view = View { now, rates };
        for shown in [text(&view), frame(&view, 100, 40), frame(&view, 160, 30)] {
            for part in [
                "degraded",
                "the NPU is hot",
                "cpu0   █████░░░░░  50 %",
                "86.2 °C",
                "8 of 32",
                "50 % of 3 contexts",
                "10.0 requests/s",
                "context 1: mnist (convolution), 1.5 s",
                "30 answered, 2.5/s",
                "Incidents, 7 so far",
                "not asked yet",
            ] {
                assert!(shown.contains(part), "{part} is not in\n{shown}");
            }
        }
    }

    #[test]
    fn a_terminal_that_is_too_small_is_no_reason_to_fall() {
        let view = View { now: Snapshot { npu: npu(1, 1), health: health(), ..Snapshot::default() }, rates: None };
        for (columns, rows) in [(1, 1), (20, 3), (200, 2), (3, 80)] {
            frame(&view, columns, rows);
        }
    }
}
