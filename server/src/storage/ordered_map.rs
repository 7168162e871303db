//! An ordered map whose copies are frozen and cheap: a B-tree of shared nodes, copied along the path of a change.
//!
//! A clone is one reference count. A change copies the nodes on its path (at most 32 entries each, 4 levels at
//! a million keys) unless nobody else holds them, so a batch copies each node once. Nodes are not merged after
//! removals; an empty one is dropped. (Driscoll, Sarnak, Sleator, Tarjan, "Making data structures
//! persistent", 1989, path copying.)

use bytes::Bytes;
use std::sync::Arc;

const ENTRIES_MAX: usize = 32;

/// The map. Keys are byte strings in byte order.
#[derive(Clone, Debug)]
pub struct OrderedMap<V> {
    root: Arc<Node<V>>,
    count: usize,
}

#[derive(Clone, Debug)]
enum Node<V> {
    Leaf(Vec<(Bytes, V)>),
    /// Each child with a lower bound of its keys; the first bound is never compared.
    Branch(Vec<(Bytes, Arc<Node<V>>)>),
}

impl<V> Default for OrderedMap<V> {
    fn default() -> Self {
        Self { root: Arc::new(Node::Leaf(Vec::new())), count: 0 }
    }
}

impl<V: Clone> OrderedMap<V> {
    /// Number of keys.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True without keys.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The value of a key.
    pub fn value(&self, key: &[u8]) -> Option<&V> {
        let mut node = &*self.root;
        loop {
            match node {
                Node::Leaf(entries) => {
                    let index = entries.binary_search_by(|(own, _)| own[..].cmp(key)).ok()?;
                    return entries.get(index).map(|(_, value)| value);
                }
                Node::Branch(children) => node = &children.get(child_of(children, key))?.1,
            }
        }
    }

    /// Shows the keys of `[lo, hi)` in order (downwards if `reverse`) until `look` says false.
    pub fn visit(&self, lo: &[u8], hi: Option<&[u8]>, reverse: bool, look: &mut dyn FnMut(&Bytes, &V) -> bool) {
        if hi.is_none_or(|hi| lo < hi) {
            visit(&self.root, lo, hi, reverse, look);
        }
    }

    /// Sets a key.
    pub fn insert(&mut self, key: Bytes, value: V) {
        let (added, split) = insert(&mut self.root, key, value);
        self.count += usize::from(added);
        if let Some((bound, right)) = split {
            let left = Arc::clone(&self.root);
            self.root = Arc::new(Node::Branch(vec![(Bytes::new(), left), (bound, right)]));
        }
    }

    /// Removes a key; false if it was absent (nothing is copied then).
    pub fn remove(&mut self, key: &[u8]) -> bool {
        if self.value(key).is_none() {
            return false;
        }
        remove(&mut self.root, key);
        self.count -= 1;
        // A root with one child is one level too many.
        while let Node::Branch(children) = &*self.root {
            let only = match &children[..] {
                [] => Arc::new(Node::Leaf(Vec::new())),
                [(_, only)] => Arc::clone(only),
                _ => break,
            };
            self.root = only;
        }
        true
    }
}

/// Index of the child whose range holds `key`.
fn child_of<V>(children: &[(Bytes, Arc<Node<V>>)], key: &[u8]) -> usize {
    children.partition_point(|(bound, _)| bound[..] <= *key).saturating_sub(1)
}

/// True when the visit goes on behind this node.
fn visit<V>(
    node: &Node<V>,
    lo: &[u8],
    hi: Option<&[u8]>,
    reverse: bool,
    look: &mut dyn FnMut(&Bytes, &V) -> bool,
) -> bool {
    match node {
        Node::Leaf(entries) => {
            let from = entries.partition_point(|(key, _)| key[..] < *lo);
            let to = hi.map_or(entries.len(), |hi| entries.partition_point(|(key, _)| key[..] < *hi));
            let inside = entries.get(from..to).unwrap_or_default();
            each(inside, reverse, |(key, value)| look(key, value))
        }
        Node::Branch(children) => {
            // The first child holds whatever is below the second one's bound.
            let to = hi.map_or(children.len(), |hi| children.partition_point(|(bound, _)| bound[..] < *hi).max(1));
            let inside = children.get(child_of(children, lo)..to).unwrap_or_default();
            each(inside, reverse, |(_, child)| visit(child, lo, hi, reverse, look))
        }
    }
}

fn each<T>(items: &[T], reverse: bool, go_on: impl FnMut(&T) -> bool) -> bool {
    if reverse { items.iter().rev().all(go_on) } else { items.iter().all(go_on) }
}

/// What a parent adds after a split: the lower bound of the new right sibling, and it.
type Split<V> = Option<(Bytes, Arc<Node<V>>)>;

fn insert<V: Clone>(node: &mut Arc<Node<V>>, key: Bytes, value: V) -> (bool, Split<V>) {
    match Arc::make_mut(node) {
        Node::Leaf(entries) => match entries.binary_search_by(|(own, _)| own.cmp(&key)) {
            Ok(index) => {
                entries[index].1 = value;
                (false, None)
            }
            Err(index) => {
                entries.insert(index, (key, value));
                (true, split(entries, Node::Leaf))
            }
        },
        Node::Branch(children) => {
            let index = child_of(children, &key);
            let (added, below) = insert(&mut children[index].1, key, value);
            if let Some(sibling) = below {
                children.insert(index + 1, sibling);
            }
            (added, split(children, Node::Branch))
        }
    }
}

/// Cuts an overfull list. A list that grew at its end keeps most entries, so that ascending loads fill nodes.
fn split<V, E>(entries: &mut Vec<(Bytes, E)>, node: impl FnOnce(Vec<(Bytes, E)>) -> Node<V>) -> Split<V> {
    if entries.len() <= ENTRIES_MAX {
        return None;
    }
    let right = entries.split_off(entries.len() / 2);
    let bound = right.first().map(|(bound, _)| bound.clone())?;
    Some((bound, Arc::new(node(right))))
}

/// Removes a key that is known to be present; true if the node is empty now.
fn remove<V: Clone>(node: &mut Arc<Node<V>>, key: &[u8]) -> bool {
    match Arc::make_mut(node) {
        Node::Leaf(entries) => {
            if let Ok(index) = entries.binary_search_by(|(own, _)| own[..].cmp(key)) {
                entries.remove(index);
            }
            entries.is_empty()
        }
        Node::Branch(children) => {
            let index = child_of(children, key);
            if remove(&mut children[index].1, key) {
                children.remove(index);
            }
            children.is_empty()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn key(number: u32) -> Bytes {
        Bytes::from(format!("k{number:05}"))
    }

    fn check(map: &OrderedMap<u32>, model: &BTreeMap<Bytes, u32>) {
        assert_eq!(map.len(), model.len());
        assert_eq!(map.is_empty(), model.is_empty());
        model.iter().for_each(|(key, value)| assert_eq!(map.value(key), Some(value)));
        for (lo, hi) in [(0, 600), (100, 101), (0, 50), (550, 600), (300, 300), (400, 200), (17, 333)] {
            let (lo, hi) = (key(lo), key(hi));
            let inside = |(known, _): &(&Bytes, &u32)| **known >= lo && **known < hi;
            let expected: Vec<(Bytes, u32)> =
                model.iter().filter(inside).map(|(key, value)| (key.clone(), *value)).collect();
            for reverse in [false, true] {
                let mut seen = visited(map, &lo, Some(&hi), reverse, usize::MAX);
                let first = visited(map, &lo, Some(&hi), reverse, 3);
                assert_eq!(first[..], seen[..seen.len().min(3)]);
                if reverse {
                    seen.reverse();
                }
                assert_eq!(seen, expected, "{lo:?} {hi:?} {reverse}");
            }
        }
        assert_eq!(visited(map, b"", None, false, usize::MAX).len(), model.len());
        assert_eq!(visited(map, b"k00599\0", None, true, usize::MAX), []);
    }

    fn visited(
        map: &OrderedMap<u32>,
        lo: &[u8],
        hi: Option<&[u8]>,
        reverse: bool,
        most: usize,
    ) -> Vec<(Bytes, u32)> {
        let mut seen = Vec::new();
        map.visit(lo, hi, reverse, &mut |key, value| {
            seen.push((key.clone(), *value));
            seen.len() < most
        });
        seen
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn agrees_with_a_btreemap_and_frozen_copies_stay(
            steps in prop::collection::vec((any::<bool>(), 0_u32..600, any::<u32>()), 1..1500),
            freeze_at in 0_usize..1500,
        ) {
            let (mut map, mut model, mut frozen) = (OrderedMap::default(), BTreeMap::new(), None);
            for (index, (put, number, value)) in steps.into_iter().enumerate() {
                if index == freeze_at {
                    frozen = Some((map.clone(), model.clone()));
                }
                if put {
                    map.insert(key(number), value);
                    model.insert(key(number), value);
                } else {
                    prop_assert_eq!(map.remove(&key(number)), model.remove(&key(number)).is_some());
                }
            }
            check(&map, &model);
            (0..600).for_each(|number| assert_eq!(map.value(&key(number)), model.get(&key(number))));
            if let Some((map, model)) = frozen {
                check(&map, &model);
            }
        }
    }

    #[test]
    fn everything_can_be_removed_again() {
        let mut map = OrderedMap::default();
        (0..5_000).for_each(|number| map.insert(key(number), number));
        (0..5_000).rev().for_each(|number| assert!(map.remove(&key(number))));
        assert!(map.is_empty() && !map.remove(b"k00000"));
        map.insert(key(1), 1);
        assert_eq!(map.value(&key(1)), Some(&1));
    }

    #[test]
    fn a_change_copies_its_path_only() {
        let mut map = OrderedMap::default();
        (0..20_000).for_each(|number| map.insert(key(number), number));
        let before = map.clone();
        map.insert(key(77), 0);
        let (Node::Branch(old), Node::Branch(new)) = (&*before.root, &*map.root) else {
            panic!("20,000 keys in a leaf")
        };
        let copied = old.iter().zip(new).filter(|((_, old), (_, new))| !Arc::ptr_eq(old, new)).count();
        assert_eq!((old.len(), copied), (new.len(), 1));
    }
}
