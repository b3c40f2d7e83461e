//! Network interface addresses, from getifaddrs(3).
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `address/prefix` of every address of every interface that is not loopback, in interface-index order.
pub(crate) fn list() -> io::Result<Vec<String>> {
    let mut found = collect()?;
    // Stable: addresses of one interface keep the kernel's order.
    found.sort_by_key(|(index, _, _)| *index);
    Ok(found
        .into_iter()
        .map(|(_, address, prefix)| format!("{address}/{prefix}"))
        .collect())
}

fn collect() -> io::Result<Vec<(u32, IpAddr, u32)>> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs writes a list head into `head`, freed below.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = head;
    while !next.is_null() {
        // SAFETY: `next` is a node of the list that lives until freeifaddrs.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        let loopback = entry.ifa_flags & u32::try_from(libc::IFF_LOOPBACK).unwrap_or(0) != 0;
        if loopback {
            continue;
        }
        if let (Some(address), Some(mask)) = (address_of(entry.ifa_addr), address_of(entry.ifa_netmask)) {
            // SAFETY: ifa_name is a NUL-terminated string of the list.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            // SAFETY: if_nametoindex reads a NUL-terminated string.
            let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
            found.push((index, address, prefix(mask)));
        }
    }
    // SAFETY: `head` came from getifaddrs and is freed once.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

fn address_of(socket: *const libc::sockaddr) -> Option<IpAddr> {
    if socket.is_null() {
        return None;
    }
    // SAFETY: not null, and every sockaddr starts with its family.
    match i32::from(unsafe { (*socket).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a sockaddr_in.
            let v4 = unsafe { &*socket.cast::<libc::sockaddr_in>() };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a sockaddr_in6.
            let v6 = unsafe { &*socket.cast::<libc::sockaddr_in6>() };
            Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

fn prefix(mask: IpAddr) -> u32 {
    match mask {
        IpAddr::V4(mask) => mask.to_bits().count_ones(),
        IpAddr::V6(mask) => mask.to_bits().count_ones(),
    }
}
