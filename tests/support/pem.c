/* SPDX-License-Identifier: MIT */
/*
 * EC keys, certificates that are good for an hour.
 */
#include "support/pem.h"

#include <stdio.h>
#include <stdlib.h>

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "support/guard.h"

struct pem {
    EVP_PKEY *key;
    X509 *certificate;
};

static EVP_PKEY *make_key(void)
{
    EVP_PKEY *key = NULL;
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_id(EVP_PKEY_EC, NULL);
    if (!context || EVP_PKEY_keygen_init(context) <= 0 ||
        EVP_PKEY_CTX_set_ec_paramgen_curve_nid(context, NID_X9_62_prime256v1) <= 0 ||
        EVP_PKEY_keygen(context, &key) <= 0) {
        guard_fail("no key");
    }
    EVP_PKEY_CTX_free(context);
    return key;
}

static void extend(X509 *certificate, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, certificate, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    if (!extension || !X509_add_ext(certificate, extension, -1)) {
        guard_fail("no extension %s", value);
    }
    X509_EXTENSION_free(extension);
}

/* Unsigned yet. */
static X509 *make_certificate(EVP_PKEY *key, const char *name, long serial)
{
    X509 *certificate = X509_new();
    if (!certificate || !X509_set_version(certificate, 2) ||
        !ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial) ||
        !X509_gmtime_adj(X509_getm_notBefore(certificate), -3600) ||
        !X509_gmtime_adj(X509_getm_notAfter(certificate), 3600) || !X509_set_pubkey(certificate, key) ||
        !X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC, (const unsigned char *)name,
                                    -1, -1, 0)) {
        guard_fail("no certificate %s", name);
    }
    return certificate;
}

static void sign(X509 *certificate, X509 *issuer, EVP_PKEY *key)
{
    if (!X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) ||
        !X509_sign(certificate, key, EVP_sha256())) {
        guard_fail("can't sign");
    }
}

static void write_files(const char *folder, const char *name, EVP_PKEY *key, X509 *certificate)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s.key", folder, name);
    FILE *file = fopen(path, "w");
    if (!file || !PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) || fclose(file) != 0) {
        guard_fail("can't write %s", path);
    }
    snprintf(path, sizeof path, "%s/%s.crt", folder, name);
    file = fopen(path, "w");
    if (!file || !PEM_write_X509(file, certificate) || fclose(file) != 0) {
        guard_fail("can't write %s", path);
    }
}

struct pem *pem_authority(const char *folder, const char *name)
{
    struct pem *authority = calloc(1, sizeof *authority);
    if (!authority) {
        guard_fail("out of memory");
    }
    authority->key = make_key();
    authority->certificate = make_certificate(authority->key, name, 1);
    extend(authority->certificate, NID_basic_constraints, "critical,CA:TRUE");
    extend(authority->certificate, NID_key_usage, "critical,keyCertSign");
    sign(authority->certificate, authority->certificate, authority->key);
    write_files(folder, name, authority->key, authority->certificate);
    return authority;
}

void pem_certificate(const struct pem *authority, const char *folder, const char *name, const char *names)
{
    EVP_PKEY *key = make_key();
    X509 *certificate = make_certificate(key, name, 2);
    extend(certificate, NID_subject_alt_name, names);
    sign(certificate, authority->certificate, authority->key);
    write_files(folder, name, key, certificate);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

void pem_free(struct pem *authority)
{
    X509_free(authority->certificate);
    EVP_PKEY_free(authority->key);
    free(authority);
}
