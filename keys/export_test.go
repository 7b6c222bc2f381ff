package keys

// Cheapen lets tests make many keys without paying for the passphrase's safety.
func (f *Files) Cheapen() { f.iterations = 1000 }

// Seal and Open are the PKCS#8 envelope.
var (
	Seal         = sealKey
	Open         = openKey
	CheckPrivate = checkPrivate
)
