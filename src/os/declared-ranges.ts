/**
 * The id ranges that this machine declares as taken, read from the files that declare them. A file that is
 * absent declares nothing. A file that cannot be read, or that does not say clearly what it declares, is an
 * error that names it: ignoring it could give a uid to a job that somebody else will get as well.
 */
import { lstatSync, readdirSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { errnoOf, XceError } from '../base/errors.ts';
import { quoteText } from '../base/escape.ts';
import { readBounded } from './files.ts';

/** An inclusive range of uids, gids or both, and whose it is: one phrase for a message. */
export type DeclaredRange = { readonly first: number; readonly last: number; readonly owner: string };

const FILE_BYTES_MAX = 4 << 20;
const FILES_MAX = 256;

/** SSSD's defaults of ldap_idmap_range_min and _max; FreeIPA chooses its ranges between the same numbers. */
const SSSD_RANGE = { first: 200_000, last: 2_000_200_000 } as const;

const refuse = (path: string, reason: string, cause?: unknown): XceError =>
  new XceError('declared-ranges', `${path}: ${reason}`, {
    at: path,
    unchanged: 'no uid was handed out',
    ...(cause === undefined ? {} : { cause }),
  });

/** Whether there is something of that name; a link that points nowhere is there. */
const isPresent = (path: string): boolean => {
  try {
    lstatSync(path);
    return true;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return false;
    throw refuse(path, `cannot be looked up: ${errnoOf(error) ?? String(error)}`, error);
  }
};

/** Lines of a text file from 1, or undefined when there is none. Links are followed: distributions use them here. */
const readLines = (path: string): readonly string[] | undefined => {
  if (!isPresent(path)) return undefined;
  let bytes: Buffer;
  try {
    bytes = readBounded(realpathSync(path), FILE_BYTES_MAX);
  } catch (error) {
    const reason = errnoOf(error) ?? (error instanceof Error ? error.message : String(error));
    throw refuse(path, `cannot be read: ${reason}`, error);
  }
  if (bytes.includes(0)) throw refuse(path, 'is not a text file (it has NUL bytes)');
  return bytes.toString('latin1').split(/\r?\n/);
};

const parseId = (text: string): number | undefined =>
  /^(0|[1-9][0-9]{0,9})$/.test(text) ? Number(text) : undefined;

/** Shadow's own defaults, which hold where login.defs does not set a key (login.defs(5)). */
const LOGIN_DEFAULTS: ReadonlyMap<string, number> = new Map([
  ['UID_MIN', 1000],
  ['UID_MAX', 60_000],
  ['GID_MIN', 1000],
  ['GID_MAX', 60_000],
  ['SYS_UID_MIN', 101],
  ['SYS_GID_MIN', 101],
  ['SUB_UID_MIN', 100_000],
  ['SUB_UID_MAX', 600_100_000],
  ['SUB_GID_MIN', 100_000],
  ['SUB_GID_MAX', 600_100_000],
]);

const readLoginDefs = (path: string): readonly DeclaredRange[] => {
  const lines = readLines(path);
  if (lines === undefined) return [];
  const values = new Map<string, number>();
  lines.forEach((text, index) => {
    const [, key, value = ''] =
      /^[ \t]*((?:SYS_|SUB_)?[UG]ID_M(?:IN|AX))(?:[ \t]+(.*?))?[ \t]*$/.exec(text) ?? [];
    if (key === undefined) return;
    const number = parseId(value);
    if (number === undefined) throw refuse(`${path}:${index + 1}`, `${quoteText(value)} is not an id`);
    values.set(key, number);
  });
  const get = (key: string): number => values.get(key) ?? LOGIN_DEFAULTS.get(key) ?? 0;
  return ['UID', 'GID', 'SYS_UID', 'SYS_GID', 'SUB_UID', 'SUB_GID'].flatMap((name) => {
    const low = `${name}_MIN`;
    const high = `${name}_MAX`;
    const belowUsers = name.startsWith('SYS_') && !values.has(high);
    const first = get(low);
    const last = belowUsers ? get(low.slice('SYS_'.length)) - 1 : get(high);
    if (first <= last) return [{ first, last, owner: `${low} to ${high} of ${path}` }];
    if (belowUsers) return [];
    throw refuse(path, `${low} ${first} is above ${high} ${last}`);
  });
};

/** subuid(5): `owner:first:count`. */
const readSubIds = (path: string): readonly DeclaredRange[] => {
  const ranges: DeclaredRange[] = [];
  (readLines(path) ?? []).forEach((text, index) => {
    if (/^[ \t]*(#|$)/.test(text)) return;
    const at = `${path}:${index + 1}`;
    const [owner = '', start = '', length = '', ...rest] = text.split(':');
    const first = parseId(start);
    const count = parseId(length);
    if (owner === '' || first === undefined || count === undefined || rest.length > 0) {
      throw refuse(at, `${quoteText(text)} is not owner:first:count`);
    }
    if (count > 0) ranges.push({ first, last: first + count - 1, owner: `${quoteText(owner)} in ${at}` });
  });
  return ranges;
};

type Setting = { readonly value: string; readonly at: string };
/** Section to key to the last setting; names in lower case. */
type Sections = Map<string, Map<string, Setting>>;

/** The dialect of sssd.conf(5): sections, `key = value`, continuation by indentation, whole-line comments. */
const readSssdFile = (path: string, sections: Sections): void => {
  let section: Map<string, Setting> | undefined;
  let key: string | undefined;
  (readLines(path) ?? []).forEach((text, index) => {
    const at = `${path}:${index + 1}`;
    if (/^[ \t]*([#;]|$)/.test(text)) return;
    const name = /^\[([^\]]+)\][ \t]*$/.exec(text)?.[1];
    if (name !== undefined) {
      const known = name.trim().toLowerCase();
      section = sections.get(known) ?? new Map<string, Setting>();
      sections.set(known, section);
      key = undefined;
      return;
    }
    const earlier = key === undefined ? undefined : section?.get(key);
    if (/^[ \t]/.test(text) && key !== undefined && earlier !== undefined) {
      section?.set(key, { ...earlier, value: `${earlier.value} ${text.trim()}` });
      return;
    }
    const [, found, value = ''] = /^[ \t]*([^=[\]]+?)[ \t]*=[ \t]*(.*?)[ \t]*$/.exec(text) ?? [];
    if (found === undefined || section === undefined) throw refuse(at, `${quoteText(text)} is not a setting`);
    key = found.toLowerCase();
    section.set(key, { value, at });
  });
};

const listSnippets = (directory: string): readonly string[] => {
  if (!isPresent(directory)) return [];
  let names: string[];
  try {
    names = readdirSync(directory);
  } catch (error) {
    throw refuse(directory, `cannot be read: ${errnoOf(error) ?? String(error)}`, error);
  }
  const snippets = names.filter((name) => name.endsWith('.conf') && !name.startsWith('.')).sort();
  if (snippets.length > FILES_MAX) throw refuse(directory, `holds more than ${FILES_MAX} files`);
  return snippets.map((name) => join(directory, name));
};

const isTrue = (setting: Setting | undefined, otherwise: boolean): boolean => {
  if (setting === undefined) return otherwise;
  if (/^true$/i.test(setting.value)) return true;
  if (/^false$/i.test(setting.value)) return false;
  throw refuse(setting.at, `${quoteText(setting.value)} is neither true nor false`);
};

const idOf = (setting: Setting | undefined, otherwise: number): number => {
  const value = setting === undefined ? otherwise : parseId(setting.value);
  if (value !== undefined) return value;
  throw refuse(setting?.at ?? '', `${quoteText(setting?.value ?? '')} is not an id`);
};

/** The range between two settings of a section, or their defaults. */
const rangeBetween = (
  settings: ReadonlyMap<string, Setting>,
  [lowKey, lowDefault]: readonly [string, number],
  [highKey, highDefault]: readonly [string, number],
  owner: string,
): DeclaredRange => {
  const first = idOf(settings.get(lowKey), lowDefault);
  const last = idOf(settings.get(highKey), highDefault);
  if (first <= last) return { first, last, owner };
  const at = settings.get(highKey)?.at ?? settings.get(lowKey)?.at ?? '';
  throw refuse(at, `${lowKey} ${first} is above ${highKey} ${last}`);
};

/** What one SSSD domain may hand out by itself, from sssd-ldap(5), sssd-ad(5), sssd-ipa(5) and sssd.conf(5). */
const rangesOfDomain = (
  section: string,
  settings: ReadonlyMap<string, Setting>,
): readonly DeclaredRange[] => {
  const whose = `SSSD ${quoteText(section)}`;
  const provider = settings.get('id_provider')?.value.toLowerCase();
  const ranges: DeclaredRange[] = [];
  if (isTrue(settings.get('ldap_id_mapping'), provider === 'ad')) {
    ranges.push(
      rangeBetween(
        settings,
        ['ldap_idmap_range_min', SSSD_RANGE.first],
        ['ldap_idmap_range_max', SSSD_RANGE.last],
        `the id mapping of ${whose}`,
      ),
    );
  }
  if (provider === 'ipa') ranges.push({ ...SSSD_RANGE, owner: `the FreeIPA ranges of ${whose}` });
  // max_id 0 means no bound, which declares nothing.
  if (idOf(settings.get('max_id'), 0) > 0) {
    ranges.push(rangeBetween(settings, ['min_id', 1], ['max_id', 0], `min_id to max_id of ${whose}`));
  }
  return ranges;
};

const readSssd = (directory: string): readonly DeclaredRange[] => {
  const sections: Sections = new Map();
  for (const path of [join(directory, 'sssd.conf'), ...listSnippets(join(directory, 'conf.d'))]) {
    readSssdFile(path, sections);
  }
  return Array.from(sections).flatMap(([name, settings]) =>
    name.startsWith('domain/') ? rangesOfDomain(name, settings) : [],
  );
};

/**
 * smb.conf(5): names ignore case and blanks; `idmap config DOMAIN : range = 10000-19999` and the older
 * `idmap uid|gid`, `winbind uid|gid`. Follows `include` of one fixed path; one with a `%` variable differs by
 * client and cannot hold what winbindd uses.
 */
const readSamba = (path: string, seen = new Set<string>()): readonly DeclaredRange[] => {
  if (seen.has(path)) return [];
  if (seen.add(path).size > FILES_MAX) throw refuse(path, `is one of more than ${FILES_MAX} included files`);
  const ranges: DeclaredRange[] = [];
  let pending = '';
  // The empty line ends a continuation at the end of the file.
  [...(readLines(path) ?? []), ''].forEach((piece, index) => {
    if (piece.endsWith('\\')) {
      pending += piece.slice(0, -1);
      return;
    }
    const text = pending + piece;
    pending = '';
    if (/^[ \t]*[#;]/.test(text)) return;
    const [, name, value = ''] = /^([^=]+)=[ \t]*(.*?)[ \t]*$/.exec(text) ?? [];
    if (name === undefined) return;
    const at = `${path}:${index + 1}`;
    const key = name.replace(/\s+/g, '').toLowerCase();
    if (key === 'include' && value.startsWith('/') && !value.includes('%')) {
      ranges.push(...readSamba(value, seen));
      return;
    }
    if (!/^(idmapconfig.*:range|(idmap|winbind)(uid|gid))$/.test(key)) return;
    const [, low = '', high = ''] = /^([0-9]+)\s*-\s*([0-9]+)$/.exec(value) ?? [];
    const first = parseId(low);
    const last = parseId(high);
    if (first === undefined || last === undefined || first > last) {
      throw refuse(at, `${quoteText(value)} is not a range of ids`);
    }
    ranges.push({ first, last, owner: `${quoteText(name.trim())} in ${at}` });
  });
  return ranges;
};

const readFreeIpa = (path: string): readonly DeclaredRange[] =>
  isPresent(path) ? [{ ...SSSD_RANGE, owner: `FreeIPA (this machine has ${path})` }] : [];

/**
 * Reads login.defs, subuid, subgid, SSSD's, Samba's and FreeIPA's files below `directory` (normally /etc).
 * Throws 'declared-ranges' that names the file. Needs root: sssd.conf is a secret.
 */
export const readDeclaredRanges = (directory = '/etc'): readonly DeclaredRange[] => [
  ...readLoginDefs(join(directory, 'login.defs')),
  ...readSubIds(join(directory, 'subuid')),
  ...readSubIds(join(directory, 'subgid')),
  ...readSssd(join(directory, 'sssd')),
  ...readSamba(join(directory, 'samba/smb.conf')),
  ...readFreeIpa(join(directory, 'ipa/default.conf')),
];
