package front

import (
	"net"
	"syscall"

	"github.com/secsy-pki/secsy-pki/peer"
)

// credentials asks the kernel who connected to a local socket.
func credentials(c *net.UnixConn) (peer.Cred, bool) {
	sys, err := c.SyscallConn()
	if err != nil {
		return peer.Cred{}, false
	}
	var u *syscall.Ucred
	var failed error
	err = sys.Control(func(fd uintptr) {
		u, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err != nil || failed != nil {
		return peer.Cred{}, false
	}
	return peer.Cred{UID: u.Uid, GID: u.Gid, PID: u.Pid}, true
}
