//! Readings of the last seconds, for figures about a window of time.

use std::collections::VecDeque;

/// Readings of the last `span_ns`, and the newest one before them.
#[derive(Debug)]
pub(crate) struct Window<T> {
    span_ns: u64,
    readings: VecDeque<(u64, T)>,
}

impl<T> Window<T> {
    pub(crate) fn new(span_ns: u64) -> Self {
        Self { span_ns, readings: VecDeque::new() }
    }

    /// Adds the reading of `at_ns`; times do not go back.
    pub(crate) fn push(&mut self, at_ns: u64, reading: T) {
        self.readings.push_back((at_ns, reading));
        // The newest one before the window is its start.
        while self.readings.get(1).is_some_and(|&(next_ns, _)| next_ns + self.span_ns <= at_ns) {
            self.readings.pop_front();
        }
    }

    /// The newest reading.
    pub(crate) fn newest(&self) -> Option<&T> {
        self.readings.back().map(|(_, reading)| reading)
    }

    /// The reading at the start of the window and the newest one, with the time between them; `None` without two readings.
    pub(crate) fn ends(&self) -> Option<(&T, &T, u64)> {
        let (first_ns, first) = self.readings.front()?;
        let (last_ns, last) = self.readings.back().filter(|_| self.readings.len() > 1)?;
        Some((first, last, last_ns.saturating_sub(*first_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_reaches_back_for_its_span() {
        let mut window = Window::new(10);
        assert_eq!(window.ends(), None);
        window.push(100, 'a');
        assert_eq!(window.ends(), None, "one reading has no difference");
        window.push(105, 'b');
        assert_eq!(window.ends(), Some((&'a', &'b', 5)));
        window.push(110, 'c');
        assert_eq!(window.ends(), Some((&'a', &'c', 10)));
        window.push(114, 'd');
        assert_eq!(window.ends(), Some((&'a', &'d', 14)), "b came less than the span before");
        window.push(115, 'e');
        assert_eq!(window.ends(), Some((&'b', &'e', 10)));
        window.push(999, 'f');
        assert_eq!(window.ends(), Some((&'e', &'f', 884)), "after a pause");
        assert_eq!(window.readings.len(), 2);
    }
}
