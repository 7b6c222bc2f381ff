import java.io.FileInputStream;
import java.security.cert.*;
import java.util.*;

/** Has Java's PKIX check one certificate by OCSP or by CRL, and no other way: good, revoked REASON, or an error. */
class Status {
	public static void main(String[] args) throws Exception {
		var x509 = CertificateFactory.getInstance("X.509");
		var certs = new ArrayList<X509Certificate>();
		for (String file : List.of(args[1], args[2], args[3])) {
			try (var in = new FileInputStream(file)) {
				certs.add((X509Certificate) x509.generateCertificate(in));
			}
		}
		var validator = CertPathValidator.getInstance("PKIX");
		var checker = (PKIXRevocationChecker) validator.getRevocationChecker();
		var options = EnumSet.of(PKIXRevocationChecker.Option.NO_FALLBACK, PKIXRevocationChecker.Option.ONLY_END_ENTITY);
		if (args[0].equals("crl")) {
			options.add(PKIXRevocationChecker.Option.PREFER_CRLS);
		}
		checker.setOptions(options);
		var params = new PKIXParameters(Set.of(new TrustAnchor(certs.get(2), null)));
		params.addCertPathChecker(checker);
		try {
			validator.validate(x509.generateCertPath(certs.subList(0, 2)), params);
			System.out.println("good");
		} catch (CertPathValidatorException e) {
			if (e.getCause() instanceof CertificateRevokedException r) {
				System.out.println("revoked " + r.getRevocationReason());
			} else {
				System.out.println("error " + e);
			}
		}
	}
}
