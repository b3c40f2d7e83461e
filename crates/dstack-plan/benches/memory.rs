//! Memory of the planner's view of a queue and of instances, in bytes for each.
#![allow(unsafe_code, clippy::print_stdout, clippy::cast_precision_loss)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts what is allocated.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed to the system's allocator; only sizes are counted beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promises hold for the system's allocator, too.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    const EACH: usize = 10_000;
    let world = common::World::new(EACH, EACH, 100_000);
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let (queue, fleets) = (world.queue(), world.fleets());
    let view = NOW.load(Ordering::Relaxed) - before;
    let placed = world.place(&queue, &fleets);
    let peak = PEAK.load(Ordering::Relaxed) - before;
    println!("view: {} bytes for each job and instance", view / EACH);
    println!(
        "at most while placing: {} bytes for each job and instance",
        peak / EACH
    );
    println!("placed: {}", placed);
}
