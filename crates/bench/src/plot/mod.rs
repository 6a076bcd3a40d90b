//! Charts of figures as SVG files: lines and points over a linear or logarithmic axis, and bars by category.
//!
//! A chart is a value: a title, two axes with their units, and series. The same chart always produces the same bytes, so that a
//! committed chart changes only when its figures do. Values that are not finite, or not above 0 on a logarithmic axis, are left
//! out. Nothing here knows the meaning of the figures.
//!
//! Drawn by `plotters` with its SVG backend alone: three crates, pure Rust, no fonts and no libraries of the system.

mod scale;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use scale::Scale;

/// Size of a chart in pixels.
const SIZE: (u32, u32) = (820, 480);
/// Colours of the series, in order; most colour-blind people can distinguish them (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(148, 103, 189),
    RGBColor(100, 100, 100),
    RGBColor(0, 0, 0),
];
/// Stores by the start of their names; each has one colour in all charts, and only Shoal has the accent.
const STORES: [(&str, RGBColor); 8] = [
    ("Shoal", RGBColor(213, 94, 0)),
    ("RocksDB", COLOURS[0]),
    ("SQLite", COLOURS[1]),
    ("LMDB", COLOURS[2]),
    ("fjall", COLOURS[3]),
    ("redb", COLOURS[4]),
    ("ext4", COLOURS[5]),
    ("Redis", COLOURS[6]),
];
/// Share of a category's width for its bars.
const BARS_SHARE: f64 = 0.8;
const FONT: &str = "sans-serif";
/// Radius of a point.
const POINT: i32 = 3;
/// A legend beside the plane: its width, its first line, and the way to the next one, in pixels.
const BESIDE_WIDTH: u32 = 150;
/// See `BESIDE_WIDTH`.
const BESIDE_TOP: i32 = 24;
/// See `BESIDE_WIDTH`.
const BESIDE_STEP: usize = 22;
/// Lengths of a dash and of the gap after it.
const DASH: (i32, i32) = (6, 4);

/// One axis: its quantity and unit.
#[derive(Clone, Debug)]
pub struct Axis {
    title: String,
    is_log: bool,
    from_zero: bool,
}

impl Axis {
    /// A linear axis of `what`, in `unit` (empty: no unit).
    #[must_use]
    pub fn new(what: &str, unit: &str) -> Self {
        let title = if unit.is_empty() { what.to_owned() } else { format!("{what} [{unit}]") };
        Self { title, is_log: false, from_zero: false }
    }

    /// Makes it logarithmic, as its title then states: equal ratios are equally long.
    #[must_use]
    pub fn log(mut self) -> Self {
        self.title.push_str(", logarithmic scale");
        self.is_log = true;
        self
    }

    /// Makes a linear axis start at 0.
    #[must_use]
    pub fn with_zero(mut self) -> Self {
        self.from_zero = true;
        self
    }

    fn scale(&self, values: impl Iterator<Item = f64>) -> Scale {
        if self.is_log { Scale::log(values) } else { Scale::linear(values, self.from_zero) }
    }
}

/// The style of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A line through its values.
    Line,
    /// A dashed line through its values.
    Dashed,
    /// A dot at each value.
    Points,
}

/// The colour of a store, or of the series with this number.
fn colour_of(name: &str, index: usize) -> RGBColor {
    let store = STORES.iter().find(|(store, _)| name.starts_with(store));
    store.map_or(COLOURS[index % COLOURS.len()], |(_, colour)| *colour)
}

struct Series {
    name: String,
    mark: Mark,
    /// Its number among the colours.
    place: usize,
    colour: RGBColor,
    values: Vec<(f64, f64)>,
}

/// A chart of lines and points.
pub struct LineChart {
    title: String,
    x: Axis,
    y: Axis,
    series: Vec<Series>,
    legend: LegendPlace,
}

/// The place of the names of the series.
#[derive(Clone)]
enum LegendPlace {
    /// In a corner of the plane.
    Corner(SeriesLabelPosition),
    /// Right of the plane, away from all lines.
    Beside,
}

impl LineChart {
    /// A chart without series.
    #[must_use]
    pub fn new(title: &str, x: Axis, y: Axis) -> Self {
        let legend = LegendPlace::Corner(SeriesLabelPosition::UpperRight);
        Self { title: title.to_owned(), x, y, series: Vec::new(), legend }
    }

    /// Puts the legend on the left (it is on the right otherwise) or at the bottom (at the top otherwise).
    #[must_use]
    pub fn legend(mut self, is_left: bool, is_bottom: bool) -> Self {
        self.legend = LegendPlace::Corner(match (is_left, is_bottom) {
            (false, false) => SeriesLabelPosition::UpperRight,
            (false, true) => SeriesLabelPosition::LowerRight,
            (true, false) => SeriesLabelPosition::UpperLeft,
            (true, true) => SeriesLabelPosition::LowerLeft,
        });
        self
    }

    /// Puts the legend right of the plane: it covers no line.
    #[must_use]
    pub fn legend_beside(mut self) -> Self {
        self.legend = LegendPlace::Beside;
        self
    }

    /// Adds a series in a new colour, or that of its store. Without a name it is not in the legend.
    pub fn add(&mut self, name: &str, mark: Mark, values: impl IntoIterator<Item = (f64, f64)>) {
        let place = self.series.last().map_or(0, |last| last.place + 1);
        self.push(name, mark, place, colour_of(name, place), values);
    }

    /// Adds a series in the colour of the last one: a measurement beside its formula.
    pub fn add_alike(&mut self, name: &str, mark: Mark, values: impl IntoIterator<Item = (f64, f64)>) {
        let (place, colour) = self.series.last().map_or((0, COLOURS[0]), |last| (last.place, last.colour));
        self.push(name, mark, place, colour, values);
    }

    fn push(
        &mut self,
        name: &str,
        mark: Mark,
        place: usize,
        colour: RGBColor,
        values: impl IntoIterator<Item = (f64, f64)>,
    ) {
        let values = values.into_iter().collect();
        self.series.push(Series { name: name.to_owned(), mark, place, colour, values });
    }

    /// The chart as the text of an SVG file.
    ///
    /// # Errors
    /// If it cannot be drawn.
    pub fn svg(&self) -> anyhow::Result<String> {
        let all = || self.series.iter().flat_map(|series| series.values.iter());
        let x = self.x.scale(all().map(|value| value.0));
        let y = self.y.scale(all().map(|value| value.1));
        let frame = Frame { title: &self.title, x_title: &self.x.title, y_title: &self.y.title, x, y };
        let has_names = self.series.iter().any(|series| !series.name.is_empty());
        let legend = match self.legend.clone() {
            _ if !has_names => Legend::None,
            LegendPlace::Corner(position) => Legend::Corner(position),
            LegendPlace::Beside => Legend::Beside(self.series.iter().map(Named::of_series).collect()),
        };
        frame.svg(legend, |chart, frame| {
            for series in &self.series {
                draw_series(chart, frame, series)?;
            }
            Ok(())
        })
    }

    /// Writes the chart to `directory/name.svg`, and creates the directory; returns the path.
    ///
    /// # Errors
    /// If it cannot be drawn or written.
    pub fn write(&self, directory: &Path, name: &str) -> anyhow::Result<PathBuf> {
        write(directory, name, &self.svg()?)
    }
}

/// A chart of bars: for each category, one bar of each series.
pub struct BarChart {
    title: String,
    x_title: String,
    y: Axis,
    categories: Vec<String>,
    series: Vec<(String, Vec<Option<f64>>)>,
    /// The text above a bar, from its value.
    label: Option<fn(f64) -> String>,
}

impl BarChart {
    /// A chart without series; `x_title` describes the categories. Bars start at 0, or at the bottom of a logarithmic axis.
    #[must_use]
    pub fn new(title: &str, x_title: &str, y: Axis, categories: &[&str]) -> Self {
        let categories = categories.iter().map(|&name| name.to_owned()).collect();
        Self {
            title: title.to_owned(),
            x_title: x_title.to_owned(),
            y: y.with_zero(),
            categories,
            series: Vec::new(),
            label: None,
        }
    }

    /// Writes the value above each bar, formatted by `label`: so a bar of 0 is also visible.
    #[must_use]
    pub fn with_values(mut self, label: fn(f64) -> String) -> Self {
        self.label = Some(label);
        self
    }

    /// Adds a series: a value or `None` for each category.
    ///
    /// # Panics
    /// If the number of values differs from the number of categories.
    pub fn add(&mut self, name: &str, values: impl IntoIterator<Item = Option<f64>>) {
        let values: Vec<Option<f64>> = values.into_iter().collect();
        assert_eq!(values.len(), self.categories.len(), "series {name} has a value for every category");
        self.series.push((name.to_owned(), values));
    }

    /// The chart as the text of an SVG file.
    ///
    /// # Errors
    /// If it cannot be drawn.
    pub fn svg(&self) -> anyhow::Result<String> {
        let y = self.y.scale(self.series.iter().flat_map(|(_, values)| values.iter().flatten().copied()));
        let x = Scale::Categories(self.categories.clone());
        let frame = Frame { title: &self.title, x_title: &self.x_title, y_title: &self.y.title, x, y };
        let width = BARS_SHARE / self.series.len().max(1) as f64;
        let legend = match self.series.len() {
            0 | 1 => Legend::None,
            // A bar may reach any corner of the plane.
            _ => Legend::Beside(self.series.iter().enumerate().map(Named::of_bars).collect()),
        };
        frame.svg(legend, |chart, frame| {
            for (index, (name, values)) in self.series.iter().enumerate() {
                // The bars of one series have the colours of their categories.
                let is_alone = self.series.len() == 1;
                let colours: Vec<RGBColor> = self
                    .categories
                    .iter()
                    .map(|category| colour_of(if is_alone { category } else { name }, index))
                    .collect();
                let left = -BARS_SHARE / 2.0 + width * index as f64;
                let shown = values.iter().enumerate().filter_map(|(place, value)| {
                    let value = value.filter(|value| frame.y.holds(*value))?;
                    Some((place as f64 + left, value, colours[place]))
                });
                chart.draw_series(shown.clone().map(|(left, value, colour)| {
                    Rectangle::new([(left, frame.y.floor()), (left + width * 0.95, value)], colour.filled())
                }))?;
                if let Some(label) = self.label {
                    let above = Pos::new(HPos::Center, VPos::Bottom);
                    let font = TextStyle::from((FONT, 13).into_font()).pos(above);
                    chart.draw_series(shown.map(|(left, value, _)| {
                        EmptyElement::at((left + width * 0.475, value))
                            + Text::new(label(value), (0, -3), font.clone())
                    }))?;
                }
            }
            Ok(())
        })
    }

    /// Writes the chart to `directory/name.svg`, and creates the directory; returns the path.
    ///
    /// # Errors
    /// If it cannot be drawn or written.
    pub fn write(&self, directory: &Path, name: &str) -> anyhow::Result<PathBuf> {
        write(directory, name, &self.svg()?)
    }
}

fn write(directory: &Path, name: &str, svg: &str) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the folder {}", directory.display()))?;
    let path = directory.join(format!("{name}.svg"));
    fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// The legend of one chart.
enum Legend<'a> {
    None,
    Corner(SeriesLabelPosition),
    /// These names, each after its mark, right of the plane.
    Beside(Vec<Named<'a>>),
}

/// A name in a legend beside the plane, and the mark before it: a filled box for bars.
struct Named<'a> {
    name: &'a str,
    colour: RGBColor,
    mark: Option<Mark>,
}

impl<'a> Named<'a> {
    fn of_bars((index, (name, _)): (usize, &'a (String, Vec<Option<f64>>))) -> Self {
        Self { name, colour: colour_of(name, index), mark: None }
    }

    fn of_series(series: &'a Series) -> Self {
        Self { name: &series.name, colour: series.colour, mark: Some(series.mark) }
    }
}

/// The frame around the series.
struct Frame<'a> {
    title: &'a str,
    x_title: &'a str,
    y_title: &'a str,
    x: Scale,
    y: Scale,
}

type Plane<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Scale, Scale>>;
type Drawn = Result<(), Box<dyn std::error::Error + Send + Sync>>;

impl Frame<'_> {
    fn svg(
        &self,
        legend: Legend<'_>,
        draw: impl FnOnce(&mut Plane<'_>, &Self) -> Drawn,
    ) -> anyhow::Result<String> {
        let mut text = String::new();
        let drawn = self.draw(&mut text, legend, draw);
        drawn.map_err(|error| anyhow::anyhow!("cannot draw the chart {:?}: {error}", self.title))?;
        Ok(text)
    }

    fn draw(
        &self,
        text: &mut String,
        legend: Legend<'_>,
        draw: impl FnOnce(&mut Plane<'_>, &Self) -> Drawn,
    ) -> Drawn {
        let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let corner = match &legend {
            Legend::Corner(position) => Some(position.clone()),
            Legend::None | Legend::Beside(_) => None,
        };
        let (plane, caption) = match legend {
            Legend::Beside(names) => {
                // Over both: it may be longer than the width of the plane.
                let below = area.titled(self.title, (FONT, 19))?;
                let (plane, side) = below.split_horizontally(SIZE.0 - BESIDE_WIDTH);
                draw_names(&side, names)?;
                (plane, None)
            }
            Legend::None | Legend::Corner(_) => (area.clone(), Some(self.title)),
        };
        let mut builder = ChartBuilder::on(&plane);
        if let Some(caption) = caption {
            builder.caption(caption, (FONT, 19));
        }
        let mut chart = builder
            .margin(12)
            .margin_right(24)
            .x_label_area_size(46)
            .y_label_area_size(66)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        chart
            .configure_mesh()
            .x_desc(self.x_title)
            .y_desc(self.y_title)
            .axis_desc_style((FONT, 15))
            .label_style((FONT, 13))
            .bold_line_style(RGBColor(225, 225, 225))
            .light_line_style(TRANSPARENT)
            .x_label_formatter(&|value| plotters::coord::ranged1d::ValueFormatter::format_ext(&self.x, value))
            .y_label_formatter(&|value| plotters::coord::ranged1d::ValueFormatter::format_ext(&self.y, value))
            .draw()?;
        draw(&mut chart, self)?;
        if let Some(position) = corner {
            chart
                .configure_series_labels()
                .position(position)
                .label_font((FONT, 13))
                .background_style(WHITE.mix(0.85))
                .border_style(RGBColor(180, 180, 180))
                .draw()?;
        }
        area.present()?;
        Ok(())
    }
}

/// Draws the names, each after its mark, one below the other; a series without a name gets no line.
fn draw_names(side: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>, names: Vec<Named<'_>>) -> Drawn {
    let named = names.into_iter().filter(|named| !named.name.is_empty());
    for (named, y) in named.zip((BESIDE_TOP..).step_by(BESIDE_STEP)) {
        let colour = named.colour;
        let style = colour.stroke_width(2);
        match named.mark {
            Some(Mark::Line) => side.draw(&PathElement::new([(0, y), (18, y)], style))?,
            Some(Mark::Dashed) => side.draw(&PathElement::new([(0, y), (7, y)], style))?,
            Some(Mark::Points) => side.draw(&Circle::new((9, y), POINT, colour.filled()))?,
            None => side.draw(&Rectangle::new([(0, y - 5), (18, y + 5)], colour.filled()))?,
        }
        side.draw(&Text::new(named.name.to_owned(), (24, y - 7), (FONT, 13)))?;
    }
    Ok(())
}

fn draw_series(chart: &mut Plane<'_>, frame: &Frame<'_>, series: &Series) -> Drawn {
    let colour = series.colour;
    let mark = series.mark;
    let values: Vec<(f64, f64)> =
        series.values.iter().copied().filter(|&(x, y)| frame.x.holds(x) && frame.y.holds(y)).collect();
    let style = colour.stroke_width(2);
    let drawn = match mark {
        Mark::Line => chart.draw_series(LineSeries::new(values, style))?,
        Mark::Dashed => chart.draw_series(DashedLineSeries::new(values, DASH.0, DASH.1, style))?,
        Mark::Points => {
            chart.draw_series(values.into_iter().map(|value| Circle::new(value, POINT, colour.filled())))?
        }
    };
    if !series.name.is_empty() {
        drawn.label(&series.name).legend(move |(x, y)| -> DynElement<'static, SVGBackend<'_>, (i32, i32)> {
            match mark {
                Mark::Points => Circle::new((x + 9, y), POINT, colour.filled()).into_dyn(),
                Mark::Dashed => PathElement::new([(x, y), (x + 7, y)], style).into_dyn(),
                Mark::Line => PathElement::new([(x, y), (x + 18, y)], style).into_dyn(),
            }
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
