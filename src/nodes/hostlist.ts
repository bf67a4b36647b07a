/**
 * Node lists as people and batch systems write them.
 *
 *   list    = name *( "," name )
 *   name    = 1*( text / bracket )            at least one character, at most LIMITS.nodeListBracketsMax brackets
 *   text    = 1*( letter / digit / "-" / "_" / "." )
 *   bracket = "[" range *( "," range ) "]"    brackets do not nest
 *   range   = number [ "-" number ]           both inclusive, the first not above the second
 *   number  = 1*20digit
 *
 * A bracket stands for each of its numbers in the order written; several brackets in one name are combined with
 * the last one running fastest. A number keeps its leading zeros: the width of a range is that of its first
 * number, so [098-101] is 098 099 100 101. Where first and last disagree about the width ([001-10], [1-010])
 * nobody can know which was meant, and the range is refused. Each expanded name must be a node name
 * (parseNodeName, which folds to lower case), and no name may come twice.
 *
 * The number of names is computed before the first one is made.
 */

import { XceError } from '../base/errors.ts';
import { quoteText } from '../base/escape.ts';
import { type NodeName, parseNodeName } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';

/** Why a list is refused and where: `position` counts characters from 1. */
export type HostlistFault = { readonly position: number; readonly reason: string };

export type Hostlist =
  | { readonly names: readonly NodeName[]; readonly fault?: never }
  | { readonly fault: HostlistFault; readonly names?: never };

const NUMBER_DIGITS_MAX = 20;

type Range = { readonly first: bigint; readonly count: bigint; readonly width: number };
type Part = string | readonly Range[];
type Pattern = { readonly at: number; readonly parts: readonly Part[]; readonly count: bigint };
/** Something read, and the index behind it. */
type Read<T> = { readonly value: T; readonly end: number };

const faultAt = (index: number, reason: string): HostlistFault => ({ position: index + 1, reason });

const isFault = (result: object): result is HostlistFault => 'reason' in result;

const isPadded = (digits: string): boolean => digits.length > 1 && digits.startsWith('0');

const readNumber = (text: string, at: number): Read<string> | HostlistFault => {
  const digits = /^[0-9]*/.exec(text.slice(at, at + NUMBER_DIGITS_MAX + 1))?.[0] ?? '';
  if (digits.length > NUMBER_DIGITS_MAX) {
    return faultAt(at, `a number has more than ${NUMBER_DIGITS_MAX} digits`);
  }
  if (digits !== '') return { value: digits, end: at + digits.length };
  const found = text[at];
  if (found === undefined) return faultAt(at, 'a bracket is not closed');
  if (found === '[') return faultAt(at, 'brackets do not nest');
  return faultAt(at, `a number is expected, not ${quoteText(found)}`);
};

const readRange = (text: string, at: number): Read<Range> | HostlistFault => {
  const first = readNumber(text, at);
  if (isFault(first)) return first;
  const width = isPadded(first.value) ? first.value.length : 1;
  const low = BigInt(first.value);
  if (text[first.end] !== '-') return { value: { first: low, count: 1n, width }, end: first.end };
  const last = readNumber(text, first.end + 1);
  if (isFault(last)) return last;
  const shown = `${first.value}-${last.value}`;
  const high = BigInt(last.value);
  if (high < low) return faultAt(at, `the range ${shown} runs backwards`);
  const agree = isPadded(last.value)
    ? last.value.length === first.value.length
    : last.value.length >= first.value.length;
  if (!agree) return faultAt(at, `the numbers of the range ${shown} are padded to different widths`);
  return { value: { first: low, count: high - low + 1n, width }, end: last.end };
};

/** Reads `[…]` that opens at `open`. */
const readBracket = (text: string, open: number): Read<readonly Range[]> | HostlistFault => {
  const ranges: Range[] = [];
  if (text[open + 1] === ']') return faultAt(open, 'a bracket is empty');
  let at = open + 1;
  for (;;) {
    const range = readRange(text, at);
    if (isFault(range)) return range;
    ranges.push(range.value);
    const next = text[range.end];
    if (next === ']') return { value: ranges, end: range.end + 1 };
    if (next === undefined) return faultAt(open, 'a bracket is not closed');
    if (next !== ',') return faultAt(range.end, `"," or "]" is expected, not ${quoteText(next)}`);
    at = range.end + 1;
  }
};

const readPattern = (text: string, start: number): Read<Pattern> | HostlistFault => {
  const parts: Part[] = [];
  let brackets = 0;
  let literalChars = 0;
  let count = 1n;
  let at = start;
  for (;;) {
    const character = text[at];
    if (character === undefined || character === ',') break;
    if (character === ']') return faultAt(at, 'a bracket is closed that was not opened');
    if (character === '[') {
      brackets += 1;
      if (brackets > LIMITS.nodeListBracketsMax) {
        return faultAt(at, `a name has more than ${LIMITS.nodeListBracketsMax} brackets`);
      }
      const bracket = readBracket(text, at);
      if (isFault(bracket)) return bracket;
      parts.push(bracket.value);
      count *= bracket.value.reduce((sum, range) => sum + range.count, 0n);
      at = bracket.end;
      continue;
    }
    const literal = /^[A-Za-z0-9._-]+/.exec(text.slice(at, at + LIMITS.nodeNameCharsMax + 1))?.[0];
    if (literal === undefined) return faultAt(at, `${quoteText(character)} cannot stand in a node name`);
    // Bounded here, before the expansion copies it for every number.
    literalChars += literal.length;
    if (literalChars > LIMITS.nodeNameCharsMax) {
      return faultAt(start, `a name is longer than ${LIMITS.nodeNameCharsMax} characters`);
    }
    parts.push(literal);
    at += literal.length;
  }
  if (parts.length === 0) return faultAt(start, 'a name is missing');
  return { value: { at: start, parts, count }, end: at };
};

const readPatterns = (text: string): readonly Pattern[] | HostlistFault => {
  const patterns: Pattern[] = [];
  let count = 0n;
  let at = 0;
  for (;;) {
    const pattern = readPattern(text, at);
    if (isFault(pattern)) return pattern;
    count += pattern.value.count;
    if (count > BigInt(LIMITS.nodesMax)) {
      return faultAt(at, `the list reaches ${count} names here; the limit is ${LIMITS.nodesMax}`);
    }
    patterns.push(pattern.value);
    if (text[pattern.end] === undefined) return patterns;
    at = pattern.end + 1;
  }
};

const textsOf = (part: Part): readonly string[] => {
  if (typeof part === 'string') return [part];
  const texts: string[] = [];
  for (const { first, count, width } of part) {
    for (let step = 0n; step < count; step += 1n) texts.push(String(first + step).padStart(width, '0'));
  }
  return texts;
};

const expandPattern = (parts: readonly Part[]): readonly string[] =>
  parts.reduce<readonly string[]>(
    (heads, part) => {
      const tails = textsOf(part);
      return heads.flatMap((head) => tails.map((tail) => head + tail));
    },
    [''],
  );

/** Expands a list in the order written, or says what is wrong with it and where. */
export const expandHostlist = (text: string): Hostlist => {
  if (text.length > LIMITS.nodeListCharsMax) {
    const reason = `the list is longer than ${LIMITS.nodeListCharsMax} characters`;
    return { fault: faultAt(LIMITS.nodeListCharsMax, reason) };
  }
  const patterns = readPatterns(text);
  if (isFault(patterns)) return { fault: patterns };
  const names = new Set<NodeName>();
  for (const { at, parts } of patterns) {
    for (const candidate of expandPattern(parts)) {
      const name = parseNodeName(candidate);
      if (name === undefined) return { fault: faultAt(at, `${quoteText(candidate)} is not a node name`) };
      if (names.has(name)) return { fault: faultAt(at, `the node ${name} is named twice`) };
      names.add(name);
    }
  }
  return { names: [...names] };
};

/** Expands a list that a caller gave, or throws 'node-list'. */
export const parseNodeList = (text: string): readonly NodeName[] => {
  const { names, fault } = expandHostlist(text);
  if (names !== undefined) return names;
  throw new XceError('node-list', `${quoteText(text)} at character ${fault.position}: ${fault.reason}`, {
    unchanged: 'no node was chosen and nothing was started',
    detail: { position: fault.position },
  });
};

/** One name, or several that differ in the numbers at some places: literals and number sets in turn. */
type Box = { readonly literals: readonly string[]; readonly numbers: readonly (readonly string[])[] };

/** Takes the digit runs out of a name; beyond the last few (and very long ones) they stay literal text. */
const takeApart = (name: string): Box => {
  const literals: string[] = [];
  const numbers: string[][] = [];
  const pieces = name.split(/([0-9]+)/);
  const foldable = pieces
    .map((piece, index) => (index % 2 === 1 && piece.length <= NUMBER_DIGITS_MAX ? index : -1))
    .filter((index) => index >= 0)
    .slice(-LIMITS.nodeListBracketsMax);
  let literal = '';
  pieces.forEach((piece, index) => {
    if (!foldable.includes(index)) {
      literal += piece;
      return;
    }
    literals.push(literal);
    numbers.push([piece]);
    literal = '';
  });
  return { literals: [...literals, literal], numbers };
};

/** Joins boxes that differ in the numbers at one place only. */
const joinAt = (boxes: readonly Box[], place: number): readonly Box[] => {
  const groups = new Map<string, { readonly box: Box; readonly texts: string[] }>();
  for (const box of boxes) {
    const others = box.numbers.map((texts, index) => (index === place ? '' : texts.join(',')));
    const key = [...box.literals, ...others].join('/');
    const group = groups.get(key);
    const texts = box.numbers[place] ?? [];
    if (group === undefined) groups.set(key, { box, texts: [...texts] });
    else group.texts.push(...texts);
  }
  return [...groups.values()].map(({ box, texts }) => ({
    literals: box.literals,
    numbers: box.numbers.map((own, index) => (index === place ? sortNumbers(texts) : own)),
  }));
};

/** By value, then by width; without leading zeros the longer of two numbers is the greater. */
const sortNumbers = (texts: readonly string[]): readonly string[] =>
  texts
    .map((text) => ({ text, digits: text.replace(/^0+(?=.)/, '') }))
    .sort((left, right) => {
      if (left.digits.length !== right.digits.length) return left.digits.length - right.digits.length;
      if (left.digits !== right.digits) return left.digits < right.digits ? -1 : 1;
      return left.text.length - right.text.length;
    })
    .map(({ text }) => text);

/** Writes numbers as ranges; padded ones first, because a padded range may run on into longer numbers. */
const writeNumbers = (texts: readonly string[]): string => {
  if (texts.length === 1 && texts[0] !== undefined) return texts[0];
  const left = new Set(texts);
  const ranges: string[] = [];
  for (const first of [...texts.filter(isPadded), ...texts.filter((text) => !isPadded(text))]) {
    if (!left.delete(first)) continue;
    const width = isPadded(first) ? first.length : 1;
    let last = first;
    for (;;) {
      const next = String(BigInt(last) + 1n).padStart(width, '0');
      if (!left.delete(next)) break;
      last = next;
    }
    ranges.push(first === last ? first : `${first}-${last}`);
  }
  return `[${ranges.join(',')}]`;
};

const writeBox = ({ literals, numbers }: Box): string =>
  literals
    .map((literal, index) => literal + (index < numbers.length ? writeNumbers(numbers[index] ?? []) : ''))
    .join('');

const groupByShape = (names: readonly NodeName[]): readonly (readonly Box[])[] => {
  const shapes = new Map<string, Box[]>();
  for (const box of names.map(takeApart)) {
    const shape = box.literals.join('/');
    const boxes = shapes.get(shape);
    if (boxes === undefined) shapes.set(shape, [box]);
    else boxes.push(box);
  }
  return [...shapes.values()];
};

const foldShape = (boxes: readonly Box[]): string => {
  const places = Array.from(boxes[0]?.numbers ?? [], (_, place) => place);
  const fold = (order: readonly number[]): string =>
    order.reduce<readonly Box[]>(joinAt, boxes).map(writeBox).join(',');
  const firstFirst = fold(places);
  if (places.length < 2) return firstFirst;
  const lastFirst = fold(places.toReversed());
  return firstFirst.length < lastFirst.length ? firstFirst : lastFirst;
};

/**
 * Writes names as a short list that expands to exactly the same set. Names of one shape stand together, shapes
 * in the order of their first name. Not the shortest list there is: places are joined last to first and first
 * to last, and the shorter result is taken. The names must be distinct.
 */
export const foldNodes = (names: readonly NodeName[]): string => groupByShape(names).map(foldShape).join(',');
