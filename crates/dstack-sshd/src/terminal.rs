//! Pseudo-terminals: opening, window size, modes the client asks for, and asynchronous reading and writing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use russh::Pty;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{
    ControlModes, InputModes, LocalModes, OptionalActions, OutputModes, SpecialCodeIndex, Termios, Winsize,
    tcgetattr, tcsetattr, tcsetwinsize,
};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::login::Login;
use crate::process::watch;

/// A terminal the client asked for.
#[derive(Debug, Clone)]
pub(crate) struct TerminalRequest {
    /// Value of `TERM`.
    pub(crate) term: String,
    /// Size of the client's window.
    pub(crate) size: Winsize,
    /// Modes, as encoded in RFC 4254 §8.
    pub(crate) modes: Vec<(Pty, u32)>,
}

/// Window size from the protocol's numbers.
pub(crate) fn window_size(columns: u32, rows: u32, width: u32, height: u32) -> Winsize {
    let short = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
    Winsize {
        ws_col: short(columns),
        ws_row: short(rows),
        ws_xpixel: short(width),
        ws_ypixel: short(height),
    }
}

/// The master side; clones share it. The terminal hangs up when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Terminal {
    master: Arc<AsyncFd<OwnedFd>>,
}

impl Terminal {
    /// Opens a terminal owned by `login`; returns the slave side and its path too.
    pub(crate) fn open(request: &TerminalRequest, login: &Login) -> io::Result<(Self, OwnedFd, PathBuf)> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let path = PathBuf::from(ptsname(&master, Vec::new())?.to_string_lossy().into_owned());
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let slave = rustix::fs::open(&path, flags, rustix::fs::Mode::empty())?;
        if login.switch {
            rustix::fs::fchown(
                &slave,
                Some(rustix::fs::Uid::from_raw(login.uid)),
                Some(rustix::fs::Gid::from_raw(login.gid)),
            )?;
            // As sshd for a user outside the group `tty`: nobody else may write to it.
            rustix::fs::fchmod(&slave, rustix::fs::Mode::from_raw_mode(0o600))?;
        }
        let mut modes = tcgetattr(&slave)?;
        apply_modes(&mut modes, &request.modes);
        tcsetattr(&slave, OptionalActions::Now, &modes)?;
        tcsetwinsize(&slave, request.size)?;
        rustix::io::ioctl_fionbio(&master, true)?;
        let master = Arc::new(watch(master)?);
        Ok((Self { master }, slave, path))
    }

    /// Changes the window size; the foreground processes get SIGWINCH.
    pub(crate) fn resize(&self, size: Winsize) -> io::Result<()> {
        Ok(tcsetwinsize(self.master.get_ref(), size)?)
    }
}

impl AsyncRead for Terminal {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.master.poll_read_ready(cx))?;
            let read = guard.try_io(|fd| Ok(rustix::io::read(fd.as_fd(), buf.initialize_unfilled())?));
            match read {
                Ok(Ok(len)) => {
                    buf.advance(len);
                    return Poll::Ready(Ok(()));
                }
                // Linux says EIO when the last process has closed the terminal: the normal end.
                Ok(Err(error)) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.master.poll_write_ready(cx))?;
            if let Ok(result) = guard.try_io(|fd| Ok(rustix::io::write(fd.as_fd(), data)?)) {
                return Poll::Ready(result);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    // Closing the sending direction of a terminal means nothing to it.
    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn apply_modes(termios: &mut Termios, modes: &[(Pty, u32)]) {
    for (mode, value) in modes {
        if let Some(index) = special_code(*mode) {
            // 255 is the protocol's "no character".
            let code = u8::try_from(*value).unwrap_or(255);
            termios.special_codes[index] = if code == 255 { 0 } else { code };
            continue;
        }
        let on = *value != 0;
        if let Some(flag) = input_mode(*mode) {
            termios.input_modes.set(flag, on);
        } else if let Some(flag) = local_mode(*mode) {
            termios.local_modes.set(flag, on);
        } else if let Some(flag) = output_mode(*mode) {
            termios.output_modes.set(flag, on);
        } else if let Some(flag) = control_mode(*mode) {
            termios.control_modes.set(flag, on);
        }
    }
}

fn special_code(mode: Pty) -> Option<SpecialCodeIndex> {
    Some(match mode {
        Pty::VINTR => SpecialCodeIndex::VINTR,
        Pty::VQUIT => SpecialCodeIndex::VQUIT,
        Pty::VERASE => SpecialCodeIndex::VERASE,
        Pty::VKILL => SpecialCodeIndex::VKILL,
        Pty::VEOF => SpecialCodeIndex::VEOF,
        Pty::VEOL => SpecialCodeIndex::VEOL,
        Pty::VEOL2 => SpecialCodeIndex::VEOL2,
        Pty::VSTART => SpecialCodeIndex::VSTART,
        Pty::VSTOP => SpecialCodeIndex::VSTOP,
        Pty::VSUSP => SpecialCodeIndex::VSUSP,
        Pty::VREPRINT => SpecialCodeIndex::VREPRINT,
        Pty::VWERASE => SpecialCodeIndex::VWERASE,
        Pty::VLNEXT => SpecialCodeIndex::VLNEXT,
        Pty::VDISCARD => SpecialCodeIndex::VDISCARD,
        _ => return None,
    })
}

fn input_mode(mode: Pty) -> Option<InputModes> {
    Some(match mode {
        Pty::IGNPAR => InputModes::IGNPAR,
        Pty::PARMRK => InputModes::PARMRK,
        Pty::INPCK => InputModes::INPCK,
        Pty::ISTRIP => InputModes::ISTRIP,
        Pty::INLCR => InputModes::INLCR,
        Pty::IGNCR => InputModes::IGNCR,
        Pty::ICRNL => InputModes::ICRNL,
        Pty::IUCLC => InputModes::IUCLC,
        Pty::IXON => InputModes::IXON,
        Pty::IXANY => InputModes::IXANY,
        Pty::IXOFF => InputModes::IXOFF,
        Pty::IMAXBEL => InputModes::IMAXBEL,
        Pty::IUTF8 => InputModes::IUTF8,
        _ => return None,
    })
}

fn local_mode(mode: Pty) -> Option<LocalModes> {
    Some(match mode {
        Pty::ISIG => LocalModes::ISIG,
        Pty::ICANON => LocalModes::ICANON,
        Pty::ECHO => LocalModes::ECHO,
        Pty::ECHOE => LocalModes::ECHOE,
        Pty::ECHOK => LocalModes::ECHOK,
        Pty::ECHONL => LocalModes::ECHONL,
        Pty::NOFLSH => LocalModes::NOFLSH,
        Pty::TOSTOP => LocalModes::TOSTOP,
        Pty::IEXTEN => LocalModes::IEXTEN,
        Pty::ECHOCTL => LocalModes::ECHOCTL,
        Pty::ECHOKE => LocalModes::ECHOKE,
        Pty::PENDIN => LocalModes::PENDIN,
        _ => return None,
    })
}

fn output_mode(mode: Pty) -> Option<OutputModes> {
    Some(match mode {
        Pty::OPOST => OutputModes::OPOST,
        Pty::OLCUC => OutputModes::OLCUC,
        Pty::ONLCR => OutputModes::ONLCR,
        Pty::OCRNL => OutputModes::OCRNL,
        Pty::ONOCR => OutputModes::ONOCR,
        Pty::ONLRET => OutputModes::ONLRET,
        _ => return None,
    })
}

fn control_mode(mode: Pty) -> Option<ControlModes> {
    Some(match mode {
        Pty::CS7 => ControlModes::CS7,
        Pty::CS8 => ControlModes::CS8,
        Pty::PARENB => ControlModes::PARENB,
        Pty::PARODD => ControlModes::PARODD,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn modes_and_size_are_applied_and_bytes_pass() {
        let request = TerminalRequest {
            term: "xterm".to_owned(),
            size: window_size(132, 43, 0, 100_000),
            modes: vec![
                (Pty::ECHO, 0),
                (Pty::VINTR, 5),
                (Pty::VSUSP, 255),
                (Pty::TTY_OP_ISPEED, 38400),
            ],
        };
        let login = Login::own(&dstack_system::accounts::Passwd::system(), None);
        let (mut terminal, slave, path) = Terminal::open(&request, &login).unwrap();
        assert!(path.starts_with("/dev/pts"));
        let modes = tcgetattr(&slave).unwrap();
        assert!(!modes.local_modes.contains(LocalModes::ECHO));
        assert_eq!(modes.special_codes[SpecialCodeIndex::VINTR], 5);
        assert_eq!(modes.special_codes[SpecialCodeIndex::VSUSP], 0);
        let size = rustix::termios::tcgetwinsize(&slave).unwrap();
        assert_eq!((size.ws_col, size.ws_row, size.ws_ypixel), (132, 43, u16::MAX));

        terminal.write_all(b"typed\n").await.unwrap();
        let mut buffer = [0; 64];
        let len = rustix::io::read(&slave, &mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"typed\n");
        rustix::io::write(&slave, b"shown").unwrap();
        drop(slave);
        let mut shown = String::new();
        terminal.read_to_string(&mut shown).await.unwrap();
        assert_eq!(shown, "shown");
    }
}
