//! The SFTP helper alone, for the tests of the SSH server: `sftp-server` on standard input and output.

fn main() -> std::io::Result<()> {
    dstack_sshd::sftp::serve_stdio()
}
