/**
 * A directory service for tests: slapd on one node of a cluster with the layer `directory`, and nodes that take their
 * users and groups from it, through nslcd or through sssd. As packaged, slapd, nslcd and nscd start on every node;
 * `joinDirectory` stops what a node is not meant to run.
 */
import type { Node } from './cluster/node.ts';

/** Somebody of the directory alone. */
export const CAROL = { name: 'carol', uid: 5001 } as const;

const SLAPD_CONF = `include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
pidfile /run/slapd/slapd.pid
modulepath /usr/lib/ldap
moduleload back_mdb
database mdb
suffix "dc=site"
rootdn "cn=admin,dc=site"
rootpw secret
directory /var/lib/ldap
index objectClass,uid,uidNumber,gidNumber eq
`;

const BASE = 'dn: dc=site\nobjectClass: dcObject\nobjectClass: organization\ndc: site\no: site\n';

const SCRIPT_START = `set -e
systemctl disable --now slapd nslcd nscd >/dev/null 2>&1
sed -i 's|^SLAPD_CONF=.*|SLAPD_CONF=/etc/ldap/slapd.conf|; s|^SLAPD_SERVICES=.*|SLAPD_SERVICES="ldap:///"|' /etc/default/slapd
rm -f /var/lib/ldap/*
systemctl start slapd
`;

export class Directory {
  readonly node: Node;

  private constructor(node: Node) {
    this.node = node;
  }

  /** Starts slapd on a node, with carol in it. */
  static async start(node: Node): Promise<Directory> {
    await node.writeFile('/etc/ldap/slapd.conf', SLAPD_CONF);
    await node.must(['sh', '-c', SCRIPT_START]);
    const directory = new Directory(node);
    await directory.#change('ldapadd', BASE);
    await directory.addGroup(CAROL.name, CAROL.uid);
    await directory.addUser(CAROL.name, CAROL.uid);
    return directory;
  }

  async #change(program: 'ldapadd' | 'ldapdelete', input: string): Promise<void> {
    const login = ['-x', '-H', 'ldap://127.0.0.1', '-D', 'cn=admin,dc=site', '-w', 'secret'];
    await this.node.must([program, ...login], { input });
  }

  async addUser(name: string, uid: number): Promise<void> {
    await this.#change(
      'ldapadd',
      `dn: uid=${name},dc=site
objectClass: account
objectClass: posixAccount
uid: ${name}
cn: ${name}
uidNumber: ${uid}
gidNumber: ${CAROL.uid}
homeDirectory: /home/${name}
loginShell: /bin/bash
`,
    );
  }

  async addGroup(name: string, gid: number): Promise<void> {
    await this.#change(
      'ldapadd',
      `dn: cn=${name},dc=site\nobjectClass: posixGroup\ncn: ${name}\ngidNumber: ${gid}\n`,
    );
  }

  async removeUser(name: string): Promise<void> {
    await this.#change('ldapdelete', `uid=${name},dc=site\n`);
  }

  async stop(): Promise<void> {
    await this.node.must(['systemctl', 'stop', 'slapd']);
  }

  async resume(): Promise<void> {
    await this.node.must(['sh', '-c', 'systemctl start slapd; systemctl kill --signal=CONT slapd']);
  }

  /** It takes connections and requests, and answers nothing. */
  async suspend(): Promise<void> {
    await this.node.must(['systemctl', 'kill', '--signal=STOP', 'slapd']);
  }
}

/** How a node asks the directory. */
export type Way = 'nslcd' | 'sssd' | 'sssd without caches';

export const serviceOf = (way: Way): 'nslcd' | 'sssd' => (way === 'nslcd' ? 'nslcd' : 'sssd');

const NSLCD_CONF = `uid nslcd
gid nslcd
uri ldap://ldap/
base dc=site
`;

const sssdConf = (hasCaches: boolean): string => `[sssd]
domains = site
services = nss

[nss]
${hasCaches ? '' : 'memcache_timeout = 0\nentry_negative_timeout = 0\n'}
[domain/site]
id_provider = ldap
sudo_provider = none
autofs_provider = none
ldap_uri = ldap://ldap/
ldap_search_base = dc=site
ldap_id_use_start_tls = false
enumerate = false
${hasCaches ? '' : 'entry_cache_timeout = 1\n'}`;

/** Makes a node take users and groups from slapd on the node named ldap; it finds carol when this resolves. */
export const joinDirectory = async (node: Node, way: Way): Promise<void> => {
  await node.must(['systemctl', 'disable', '--now', 'slapd', 'nslcd', 'nscd', 'sssd']);
  await node.must(['sh', '-c', 'rm -f /var/lib/sss/db/* /var/lib/sss/mc/*']);
  if (way === 'nslcd') await node.writeFile('/etc/nslcd.conf', NSLCD_CONF, { mode: 0o600 });
  else await node.writeFile('/etc/sssd/sssd.conf', sssdConf(way === 'sssd'), { mode: 0o600 });
  const nss = way === 'nslcd' ? 'ldap' : 'sss';
  await node.must([
    'sed',
    '-i',
    '-E',
    `s/^(passwd|group):.*/\\1: files systemd ${nss}/`,
    '/etc/nsswitch.conf',
  ]);
  await restartClient(node, way);
};

/** Lets the daemon of a node forget that the directory was away. */
export const restartClient = async (node: Node, way: Way): Promise<void> => {
  await node.must([
    'sh',
    '-c',
    'systemctl reset-failed "$1" 2>/dev/null; systemctl restart "$1"',
    'sh',
    serviceOf(way),
  ]);
  await node.must([
    'sh',
    '-c',
    'for i in $(seq 100); do getent passwd "$1" && exit 0; sleep 0.1; done; exit 1',
    'sh',
    String(CAROL.uid),
  ]);
};
