/* A name service module that fails: every look-up ends with an input/output error, as from a broken disk or bus. */
#include <errno.h>
#include <grp.h>
#include <nss.h>
#include <pwd.h>
#include <stddef.h>

enum nss_status _nss_ldap_getpwuid_r(uid_t uid, struct passwd *found, char *buffer, size_t size, int *error)
{
    (void)uid, (void)found, (void)buffer, (void)size;
    *error = EIO;
    return NSS_STATUS_UNAVAIL;
}

enum nss_status _nss_ldap_getgrgid_r(gid_t gid, struct group *found, char *buffer, size_t size, int *error)
{
    (void)gid, (void)found, (void)buffer, (void)size;
    *error = EIO;
    return NSS_STATUS_UNAVAIL;
}
