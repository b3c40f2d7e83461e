//! Host agent: images, containers, GPUs, volumes.
