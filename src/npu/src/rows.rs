//! Lists of rows whose memory outlives what they list.

/// The memory of a list. It is empty between calls, so that it may list what each call borrows.
#[derive(Debug, Default)]
pub(crate) struct Rows(Vec<&'static mut [u8]>);

impl Rows {
    /// The list, empty, for rows of any type.
    pub(crate) fn take<'a, R>(&mut self) -> Vec<&'a mut [R]> {
        recycle(std::mem::take(&mut self.0))
    }

    /// Keeps the memory of a list.
    pub(crate) fn keep<R>(&mut self, list: Vec<&mut [R]>) {
        self.0 = recycle(list);
    }
}

/// The memory of a list for elements of the same size: collecting what came from a vector happens in its place.
fn recycle<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    list.into_iter().filter_map(|_| None).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_keeps_its_memory_from_call_to_call() {
        let mut rows = Rows::default();
        let mut list = rows.take();
        let mut values = [1_i32; 100];
        list.extend(values.chunks_mut(2));
        let (capacity, place) = (list.capacity(), list.as_ptr().addr());
        rows.keep(list);
        let list = rows.take::<f32>();
        assert_eq!((list.len(), list.capacity(), list.as_ptr().addr()), (0, capacity, place));
    }
}
