/* SPDX-License-Identifier: MIT */
/*
 * Keys and certificates for a test, made on the spot: none lies in the tree. Aborts the test where it can't.
 */
#ifndef WEIR_TESTS_PEM_H
#define WEIR_TESTS_PEM_H

struct pem;

/* An authority: writes <folder>/<name>.crt and .key. */
struct pem *pem_authority(const char *folder, const char *name);

/* A certificate signed by it for these names (OpenSSL's form: "DNS:a,IP:127.0.0.1"), into <folder>/<name>.crt, .key. */
void pem_certificate(const struct pem *authority, const char *folder, const char *name, const char *names);

void pem_free(struct pem *authority);

#endif
