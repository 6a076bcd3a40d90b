//! The picture of `shoal top`: the lines of the summary, a table of requests, and the store's rates.

use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table};
use shoal_client::Stat;

use crate::arguments::size::Size;
use crate::output::summary::{RequestRow, Summary, show_ns, show_rate};

/// Rates that the curve shows, one for each answer.
const HISTORY: usize = 200;

/// Figures older than this and than three periods get a warning.
const OLD: Duration = Duration::from_secs(5);

/// The content of the picture: the last two answers of the server, and the rates of earlier ones.
pub(super) struct View {
    before: Option<Stat>,
    now: Stat,
    came: Instant,
    apart: Duration,
    /// All requests a second, the newest last.
    history: Vec<u64>,
    error: Option<String>,
    is_held: bool,
}

impl View {
    pub(super) fn new(first: Stat) -> Self {
        Self {
            before: None,
            now: first,
            came: Instant::now(),
            apart: Duration::ZERO,
            history: Vec::new(),
            error: None,
            is_held: false,
        }
    }

    /// Takes an answer of the server.
    pub(super) fn take(&mut self, stat: Stat) {
        self.error = None;
        if self.is_held {
            // The picture is held, so its age is no news.
            self.came = Instant::now();
            return;
        }
        // The server's own clock measures the time between its answers best.
        let apart_ns = stat.uptime_ns.saturating_sub(self.now.uptime_ns);
        self.apart = if apart_ns > 0 { Duration::from_nanos(apart_ns) } else { self.came.elapsed() };
        self.came = Instant::now();
        self.before = Some(std::mem::replace(&mut self.now, stat));
        let rate: f64 = self.summary().requests().iter().map(|row| row.rate).sum();
        self.history.push(rate as u64);
        if self.history.len() > HISTORY {
            self.history.remove(0);
        }
    }

    /// Notes that the server did not answer.
    pub(super) fn fail(&mut self, error: String) {
        self.error = Some(error);
    }

    /// Freezes the picture, or unfreezes it.
    pub(super) fn hold(&mut self) {
        self.is_held = !self.is_held;
    }

    fn summary(&self) -> Summary<'_> {
        let summary = match &self.before {
            Some(before) => Summary::between(before, &self.now, self.apart),
            None => Summary::new(&self.now),
        };
        summary.without_own()
    }
}

/// Draws the picture, on a terminal with the curve of earlier rates.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, has_curve: bool) {
    let summary = view.summary();
    let (mut lines, rows) = (summary.lines(), summary.requests());
    lines.extend([("process", summary.process()), ("disk", summary.disk())]);
    let table_height = rows.len().max(1) as u16 + 3;
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(lines.len() as u16),
        Constraint::Length(table_height),
        Constraint::Length(4),
        Constraint::Min(0),
    ])
    .split(frame.area());
    let [head, about, table, device, curve] =
        [0, 1, 2, 3, 4].map(|at| areas.get(at).copied().unwrap_or_default());
    frame.render_widget(headline(view), head);
    frame.render_widget(Paragraph::new(lines.into_iter().map(about_line).collect::<Vec<_>>()), about);
    draw_requests(frame, table, rows);
    frame.render_widget(Paragraph::new(store_lines(&summary)).block(titled("store, a second")), device);
    // A curve of one row shows nothing.
    if has_curve && curve.height >= 4 {
        draw_curve(frame, curve, &view.history);
    }
}

fn titled(title: &str) -> Block<'_> {
    Block::default()
        .borders(Borders::TOP)
        .title(format!(" {title} "))
        .border_style(Style::new().fg(Color::DarkGray))
}

fn headline(view: &View) -> Line<'static> {
    let mut spans = vec![Span::styled("shoal top", Style::new().add_modifier(Modifier::BOLD))];
    let old = view.came.elapsed();
    if view.error.is_some() || (old > OLD && old > 3 * view.apart) {
        let error = view.error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        let text = format!("  the figures are {} s old{error}", old.as_secs());
        spans.push(Span::styled(text, Style::new().fg(Color::Red)));
    } else if view.before.is_none() {
        spans.push(Span::raw("  rates are those since the start of the server; one moment"));
    }
    if view.is_held {
        spans.push(Span::styled("  held (space: resume)", Style::new().fg(Color::Yellow)));
    }
    Line::from(spans)
}

fn about_line((name, text): (&'static str, String)) -> Line<'static> {
    let is_bad = ["READ-ONLY", "DAMAGED", "LOSSES", "PROBLEMS"].iter().any(|word| text.contains(word));
    let style = if is_bad { Style::new().fg(Color::Red).add_modifier(Modifier::BOLD) } else { Style::new() };
    Line::from(vec![
        Span::styled(format!("{name:12} "), Style::new().fg(Color::Cyan)),
        Span::styled(text, style),
    ])
}

fn draw_requests(frame: &mut Frame<'_>, area: Rect, rows: Vec<RequestRow>) {
    let head = ["frontend", "operation", "a second", "not done", "50 %", "90 %", "99 %", "99.9 %"];
    let row = |row: RequestRow| {
        let quantile = |permille| show_ns(row.durations.quantile_ns(permille));
        let failed = if row.failed_rate > 0.0 {
            Cell::from(show_rate(row.failed_rate)).style(Style::new().fg(Color::Red))
        } else {
            Cell::from("-")
        };
        let style = if row.rate > 0.0 { Style::new() } else { Style::new().fg(Color::DarkGray) };
        let cells = vec![
            Cell::from(row.frontend.clone()),
            Cell::from(row.operation.clone()),
            Cell::from(show_rate(row.rate)),
            failed,
            Cell::from(quantile(500)),
            Cell::from(quantile(900)),
            Cell::from(quantile(990)),
            Cell::from(quantile(999)),
        ];
        Row::new(cells).style(style)
    };
    let rows: Vec<_> = rows.into_iter().map(row).collect();
    if rows.is_empty() {
        return frame
            .render_widget(Paragraph::new("nobody has asked for anything").block(titled("requests")), area);
    }
    let widths = [9, 12, 10, 9, 9, 9, 9, 9].map(Constraint::Length);
    let head = Row::new(head).style(Style::new().add_modifier(Modifier::BOLD));
    frame.render_widget(Table::new(rows, widths).header(head).block(titled("requests")), area);
}

/// The store's rates, two lines.
fn store_lines(summary: &Summary<'_>) -> Vec<Line<'static>> {
    let rate = |name: &str| show_rate(summary.rate(name));
    let bytes = |name: &str| Size((summary.rate(name) * 4096.0) as u64);
    vec![
        Line::from(format!(
            "commits {} of {} writes, checkpoints {}, flushes {}, evictions {}",
            rate("log.batches"),
            rate("log.records"),
            rate("applies"),
            rate("device.flushes"),
            rate("pool.evictions"),
        )),
        Line::from(format!(
            "device reads {} ({}), writes {} ({}); moved {}; expired {}",
            rate("device.reads"),
            bytes("device.blocks_read"),
            rate("device.writes"),
            bytes("device.blocks_written"),
            Size((summary.rate("relocation.bytes_moved") + summary.rate("moved.bytes")) as u64),
            rate("operations.expired"),
        )),
    ]
}

fn draw_curve(frame: &mut Frame<'_>, area: Rect, history: &[u64]) {
    let most = history.iter().copied().max().unwrap_or(0);
    let title = format!("requests a second, up to {}", show_rate(most as f64));
    let shown = history.len().min(usize::from(area.width));
    let data = history.get(history.len() - shown..).unwrap_or_default();
    let curve =
        Sparkline::default().block(titled(&title)).data(data.to_vec()).style(Style::new().fg(Color::Cyan));
    frame.render_widget(curve, area);
}
