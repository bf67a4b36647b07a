/** Text of the configuration to values. Each parser takes the whole text and says in a few words what it wants. */
import { formatDuration, parseDurationMs } from '../base/duration.ts';
import { quoteText } from '../base/escape.ts';
import type { IdRange } from '../base/id-range.ts';
import {
  type InstanceName,
  type NodeName,
  parseInstanceName,
  parseNodeName,
  parseUid,
  SECTION_NAME,
  type Uid,
} from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import { isNormalPath } from '../base/paths.ts';
import { isFixedVariable, OWN_PREFIX } from '../base/variables.ts';
import { expandHostlist } from '../nodes/hostlist.ts';
import { parseClusterName } from '../pki/names.ts';

export type Parsed<T> = { readonly value: T } | { readonly reason: string };

export type Parser<T> = (text: string) => Parsed<T>;

const wants = (what: string, text: string): { readonly reason: string } => ({
  reason: text === '' ? `it is empty; it must be ${what}` : `${quoteText(text)} is not ${what}`,
});

const asParsed = <T>(value: T | undefined, what: string, text: string): Parsed<T> =>
  value === undefined ? wants(what, text) : { value };

/** The only notation of a number: other ones have been read as another number somewhere (CVE-2020-13776). */
const parseDigits = (text: string): number | undefined =>
  /^[1-9][0-9]{0,9}$/.test(text) ? Number(text) : undefined;

export const parseWhole =
  (min: number, max: number): Parser<number> =>
  (text) => {
    const value = parseDigits(text);
    const fits = value !== undefined && value >= min && value <= max;
    return fits ? { value } : wants(`a whole number from ${min} to ${max} in plain digits`, text);
  };

export const parseControlUid: Parser<Uid> = (text) =>
  asParsed(parseUid(text), 'a uid from 1 to 2147483647 in plain digits', text);

/** `70000-79999`, both inclusive. What a range may contain is judged elsewhere. */
export const parseIdRange: Parser<IdRange> = (text) => {
  const [, left = '', right = ''] = /^(.*?)-(.*)$/s.exec(text) ?? [];
  const first = parseDigits(left);
  const last = parseDigits(right);
  if (first === undefined || last === undefined) {
    return wants('a range such as 70000-79999 in plain digits', text);
  }
  return first <= last
    ? { value: { first, last } }
    : { reason: `the range ${quoteText(text)} runs backwards` };
};

export const parseDurationBetween =
  (minMs: number, maxMs: number): Parser<number> =>
  (text) => {
    const valueMs = parseDurationMs(text);
    if (valueMs === undefined) return wants('a duration such as 500ms, 30s, 10m, 2h or 7d', text);
    const fits = valueMs >= minMs && valueMs <= maxMs;
    return fits
      ? { value: valueMs }
      : { reason: `${text} is not between ${formatDuration(minMs)} and ${formatDuration(maxMs)}` };
  };

export const parseDaysBetween =
  (min: number, max: number): Parser<number> =>
  (text) => {
    const value = text.endsWith('d') ? parseDigits(text.slice(0, -1)) : undefined;
    const fits = value !== undefined && value >= min && value <= max;
    return fits ? { value } : wants(`a number of days from ${min}d to ${max}d`, text);
  };

const SIZE_UNITS: ReadonlyMap<string, number> = new Map([
  ['K', 2 ** 10],
  ['M', 2 ** 20],
  ['G', 2 ** 30],
]);

const parseSizeUpTo =
  (maxBytes: number): Parser<number> =>
  (text) => {
    const number = parseDigits(text.slice(0, -1));
    const unit = SIZE_UNITS.get(text.slice(-1));
    if (number === undefined || unit === undefined) return wants('a size such as 512K, 64M or 4G', text);
    const value = number * unit;
    return value <= maxBytes ? { value } : { reason: `${text} is over ${maxBytes / 2 ** 30}G` };
  };

export const parseSizeBytes = parseSizeUpTo(LIMITS.sizeBytesMax);

/** A size, or no limit. */
const orInfinity =
  (parseSize: Parser<number>): Parser<number | null> =>
  (text) => {
    if (text === 'infinity') return { value: null };
    const size = parseSize(text);
    return 'reason' in size ? wants('"infinity" or a size such as 64M', text) : size;
  };

const atLeast =
  <T extends number | null>(minBytes: number, parse: Parser<T>): Parser<T> =>
  (text) => {
    const size = parse(text);
    if ('reason' in size || size.value === null || size.value >= minBytes) return size;
    return { reason: `${text} is less than ${minBytes / 2 ** 20}M` };
  };

/** A size that is no smaller than `minBytes`, or no limit. */
export const parseSizeLimitFrom = (minBytes: number): Parser<number | null> =>
  atLeast(minBytes, orInfinity(parseSizeBytes));

/** Memory of a job on a node. */
export const parseMemory = atLeast(LIMITS.sandboxMemoryBytesMin, parseSizeUpTo(LIMITS.sandboxMemoryBytesMax));

/** The same, or no limit. */
export const parseMemoryLimit = atLeast(
  LIMITS.sandboxMemoryBytesMin,
  orInfinity(parseSizeUpTo(LIMITS.sandboxMemoryBytesMax)),
);

/** Share of processors: 100% is one. */
export const parsePercent: Parser<number> = (text) => {
  const value = text.endsWith('%') ? parseDigits(text.slice(0, -1)) : undefined;
  const fits = value !== undefined && value <= LIMITS.cpusMax * 100;
  return fits ? { value } : wants('a share of processors such as 50% or 400%', text);
};

export const parsePercentLimit: Parser<number | null> = (text) =>
  text === 'infinity' ? { value: null } : parsePercent(text);

/** Numbers of processors, as `0-7,16`. */
export const parseCpus: Parser<readonly number[]> = (text) => {
  const cpus = new Set<number>();
  for (const item of text.split(',')) {
    const [, first, last = first] = /^(0|[1-9][0-9]{0,3})(?:-(0|[1-9][0-9]{0,3}))?$/.exec(item) ?? [];
    const [from, to] = [Number(first), Number(last)];
    if (first === undefined || from > to || to >= LIMITS.cpusMax) {
      return wants(`a list of processors such as 0-7,16, each below ${LIMITS.cpusMax}`, text);
    }
    for (let cpu = from; cpu <= to; cpu += 1) {
      if (cpus.has(cpu)) return { reason: `${quoteText(text)} names processor ${cpu} twice` };
      cpus.add(cpu);
    }
  }
  return { value: [...cpus].toSorted((left, right) => left - right) };
};

export const parseCpusLimit: Parser<readonly number[] | null> = (text) =>
  text === 'all' ? { value: null } : parseCpus(text);

/** The value of systemd's LimitMEMLOCK=: `infinity`, or bytes as digits. */
export const parseMemlock: Parser<string> = (text) => {
  if (text === 'infinity') return { value: text };
  const size = parseSizeBytes(text);
  return 'reason' in size ? wants('"infinity" or a size such as 64M', text) : { value: String(size.value) };
};

export const parseOneOf =
  <T extends string>(...words: readonly T[]): Parser<T> =>
  (text) =>
    asParsed(
      words.find((word) => word === text),
      words.map((word) => `"${word}"`).join(' or '),
      text,
    );

/**
 * An absolute path in its one normal form, below the root directory. The characters are those that neither a
 * unit file, a bind mount nor a shell takes for something else.
 */
export const parsePath =
  (bytesMax: number = LIMITS.pathBytesMax): Parser<string> =>
  (text) => {
    if (!text.startsWith('/')) return wants('an absolute path', text);
    if (text === '/') return { reason: '"/" is the root directory' };
    if (!isNormalPath(text)) {
      return wants('a normal path (no "..", ".", "//" or "/" at the end)', text);
    }
    if (!/^[A-Za-z0-9/._@+-]+$/.test(text)) {
      return wants('a path of letters, digits and . _ @ + -', text);
    }
    return text.length <= bytesMax ? { value: text } : { reason: `the path is over ${bytesMax} bytes` };
  };

/** Every `/dev` file, `/dev/..` itself not; one `*` in the last component stands for any characters. */
export const parseDevice: Parser<string> = (text) => {
  const path = parsePath()(text.replace(/\*(?=[^*/]*$)/, '_'));
  if ('reason' in path) return path;
  return text.startsWith('/dev/') ? { value: text } : wants('the path of a device below /dev', text);
};

/** Directories between colons, as PATH has them. */
export const parseSearchPath: Parser<string> = (text) => {
  for (const directory of text.split(':')) {
    const path = parsePath()(directory);
    if ('reason' in path) return path;
  }
  return { value: text };
};

/** `%n` stands for the name of a node. */
export const parseNodePattern: Parser<string> = (text) =>
  /^[A-Za-z0-9.-]*%n[A-Za-z0-9.-]*$/.test(text) && text.length <= 255
    ? { value: text }
    : wants('a name with %n for the name of the node, such as %n-ib', text);

export const parseCluster: Parser<string> = (text) =>
  asParsed(parseClusterName(text), 'a cluster name (letters, digits and . _ -, at most 64)', text);

export const parseInstance: Parser<InstanceName> = (text) =>
  asParsed(
    parseInstanceName(text),
    `an instance name (a lower-case letter, then lower-case letters, digits and _, at most ${LIMITS.instanceCharsMax})`,
    text,
  );

export const parseNode: Parser<NodeName> = (text) => asParsed(parseNodeName(text), 'a node name', text);

export const parseHosts: Parser<readonly NodeName[]> = (text) => {
  const { names, fault } = expandHostlist(text);
  if (names !== undefined) return { value: names };
  return { reason: `${quoteText(text)} at character ${fault.position}: ${fault.reason}` };
};

/** Group names as useradd allows them; never root's. */
export const parseGroup: Parser<string> = (text) =>
  /^[a-z_][a-z0-9_-]{0,31}$/.test(text) && text !== 'root'
    ? { value: text }
    : wants('the name of a group other than root', text);

export const parseVariableName: Parser<string> = (text) =>
  /^[A-Za-z_][A-Za-z0-9_]{0,127}$/.test(text) ? { value: text } : wants('the name of a variable', text);

/** A variable that the site may give to steps: none that the suite sets, by now or later. */
export const parseSiteVariable: Parser<string> = (text) => {
  if (isFixedVariable(text)) return { reason: `${text}: every sandbox sets it itself` };
  if (text.startsWith(OWN_PREFIX))
    return { reason: `${text}: names that begin with ${OWN_PREFIX} are for the suite to set` };
  return parseVariableName(text);
};

/** The NAME of an [environment NAME]. */
export const parseEnvironmentName: Parser<string> = (text) =>
  SECTION_NAME.test(text) ? { value: text } : wants('the name of an environment', text);

const isIpv4 = (text: string): boolean =>
  /^(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(?:\.(?!$)|$)){4}$/.test(text);

/** WHATWG URL hosts in brackets are IPv6 addresses and nothing else. */
const isIpv6 = (text: string): boolean => /^[0-9a-fA-F:.]+$/.test(text) && URL.canParse(`http://[${text}]/`);

/** An interface name (at most 15 bytes, like the kernel), or a network as ADDRESS/PREFIX. */
export const parseInterface: Parser<string> = (text) => {
  const [, address = '', prefix = ''] = /^([^/]*)\/(0|[1-9][0-9]{0,2})$/.exec(text) ?? [];
  const isNetwork = (isIpv4(address) && Number(prefix) <= 32) || (isIpv6(address) && Number(prefix) <= 128);
  const isName = /^[A-Za-z0-9][A-Za-z0-9_.:-]{0,14}$/.test(text) && !isIpv4(text);
  return isNetwork || isName
    ? { value: text }
    : wants('an interface name or a network such as 10.1.0.0/16', text);
};

export type Network = { readonly address: string; readonly prefix: number };

/** `ADDRESS` or `ADDRESS/PREFIX`. */
export const parseNetwork: Parser<Network> = (text) => {
  const [, address = '', digits] = /^([^/]*)(?:\/(0|[1-9][0-9]{0,2}))?$/.exec(text) ?? [];
  const bits = isIpv4(address) ? 32 : isIpv6(address) ? 128 : 0;
  const prefix = digits === undefined ? bits : Number(digits);
  return bits > 0 && prefix <= bits
    ? { value: { address, prefix } }
    : wants('an address or a network such as 10.1.0.0/16', text);
};

export type Listen = { readonly address: string; readonly port: number | undefined };

/** `ADDRESS`, `ADDRESS:PORT` or `[IPV6]:PORT`; an address, never a name, so that no look-up decides it. */
export const parseListen: Parser<Listen> = (text) => {
  const [, bracketed, bracketedPort] = /^\[([^[\]]*)\](?::(.*))?$/.exec(text) ?? [];
  const [, plain, plainPort] = /^([0-9.]*)(?::(.*))?$/.exec(text) ?? [];
  const digits = bracketedPort ?? plainPort;
  const port = digits === undefined ? undefined : parseDigits(digits);
  const portFits = digits === undefined || (port !== undefined && port <= 65_535);
  if (portFits && bracketed !== undefined && isIpv6(bracketed))
    return { value: { address: bracketed, port } };
  if (portFits && plain !== undefined && isIpv4(plain)) return { value: { address: plain, port } };
  return wants('an address such as 10.1.0.1, 10.1.0.1:7713 or [fd00::1]:7713', text);
};

const LIST_ITEMS_MAX = 256;

/** Items between blanks or commas; nothing at all is the empty list, an empty item is refused. */
export const parseList =
  <T>(parseItem: Parser<T>): Parser<readonly T[]> =>
  (text) => {
    if (text === '') return { value: [] };
    const items = text.split(/[ \t]*,[ \t]*|[ \t]+/);
    if (items.length > LIST_ITEMS_MAX) return { reason: `the list has more than ${LIST_ITEMS_MAX} items` };
    const values: T[] = [];
    for (const [index, item] of items.entries()) {
      if (item === '') return { reason: `an item of ${quoteText(text)} is empty` };
      if (items.indexOf(item) !== index) return { reason: `${quoteText(item)} stands in the list twice` };
      const parsed = parseItem(item);
      if ('reason' in parsed) return parsed;
      values.push(parsed.value);
    }
    return { value: values };
  };
