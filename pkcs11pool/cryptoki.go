package pkcs11pool

import "github.com/miekg/pkcs11"

// cryptoki is what this room uses of a PKCS#11 module. *pkcs11.Ctx is one.
type cryptoki interface {
	Initialize(opts ...pkcs11.InitializeOption) error
	Finalize() error
	GetInfo() (pkcs11.Info, error)

	GetSlotList(tokenPresent bool) ([]uint, error)
	GetSlotInfo(slot uint) (pkcs11.SlotInfo, error)
	GetTokenInfo(slot uint) (pkcs11.TokenInfo, error)
	GetMechanismList(slot uint) ([]*pkcs11.Mechanism, error)
	GetMechanismInfo(slot uint, m []*pkcs11.Mechanism) (pkcs11.MechanismInfo, error)

	OpenSession(slot, flags uint) (pkcs11.SessionHandle, error)
	CloseSession(s pkcs11.SessionHandle) error
	GetSessionInfo(s pkcs11.SessionHandle) (pkcs11.SessionInfo, error)
	Login(s pkcs11.SessionHandle, user uint, pin string) error
	Logout(s pkcs11.SessionHandle) error

	FindObjectsInit(s pkcs11.SessionHandle, template []*pkcs11.Attribute) error
	FindObjects(s pkcs11.SessionHandle, limit int) ([]pkcs11.ObjectHandle, bool, error)
	FindObjectsFinal(s pkcs11.SessionHandle) error
	GetAttributeValue(s pkcs11.SessionHandle, o pkcs11.ObjectHandle, a []*pkcs11.Attribute) ([]*pkcs11.Attribute, error)
	SetAttributeValue(s pkcs11.SessionHandle, o pkcs11.ObjectHandle, a []*pkcs11.Attribute) error
	CreateObject(s pkcs11.SessionHandle, template []*pkcs11.Attribute) (pkcs11.ObjectHandle, error)
	DestroyObject(s pkcs11.SessionHandle, o pkcs11.ObjectHandle) error
	GenerateKeyPair(s pkcs11.SessionHandle, m []*pkcs11.Mechanism, public, private []*pkcs11.Attribute) (pub, priv pkcs11.ObjectHandle, err error)

	SignInit(s pkcs11.SessionHandle, m []*pkcs11.Mechanism, key pkcs11.ObjectHandle) error
	Sign(s pkcs11.SessionHandle, message []byte) ([]byte, error)
	DecryptInit(s pkcs11.SessionHandle, m []*pkcs11.Mechanism, key pkcs11.ObjectHandle) error
	Decrypt(s pkcs11.SessionHandle, ciphertext []byte) ([]byte, error)
}
