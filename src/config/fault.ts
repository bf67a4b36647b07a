/**
 * What is wrong with a configuration file. All faults of a file are found before one error is made of them, so
 * that an operator does not mend it line by line.
 */
import { type ErrorCode, XceError } from '../base/errors.ts';

export type ConfigFault = {
  readonly code: 'config-syntax' | 'config-value' | 'pool-range';
  /** Line of the file from 1; 0 where something is wrong with the file as a whole, or missing from it. */
  readonly line: number;
  readonly reason: string;
};

/** Faults that are told and kept; a file with more is not a configuration file. */
const FAULTS_MAX = 50;

/** Gathers faults; counts on after the bound without keeping them. */
export type FaultList = {
  add(code: ConfigFault['code'], line: number, reason: string): void;
  readonly count: number;
  /** One error that tells every fault, with the code of the most basic one. */
  toError(fileName: string): XceError;
};

const CODES: readonly ErrorCode[] = ['config-syntax', 'config-value', 'pool-range'];

export const createFaultList = (): FaultList => {
  const faults: ConfigFault[] = [];
  let count = 0;
  return {
    add: (code, line, reason) => {
      count += 1;
      if (faults.length < FAULTS_MAX) faults.push({ code, line, reason });
    },
    get count() {
      return count;
    },
    toError: (fileName) => {
      const sorted = faults.toSorted((left, right) => left.line - right.line);
      const [first] = sorted;
      const told = sorted.map(({ line, reason }) => (line === 0 ? reason : `line ${line}: ${reason}`));
      if (count > sorted.length) told.push(`and ${count - sorted.length} more`);
      const at = first === undefined || first.line === 0 ? fileName : `${fileName}:${first.line}`;
      const heading = `${fileName}: ${count} faults`;
      const isOne = count === 1 && first !== undefined;
      const message = isOne ? `${at}: ${first.reason}` : `${heading}: ${told.join('; ')}`;
      const code = CODES.find((candidate) => faults.some((fault) => fault.code === candidate)) ?? 'bug';
      return new XceError(code, message, {
        at,
        detail: { file: fileName, faults: sorted, count },
        ...(isOne ? {} : { list: { heading, items: told } }),
      });
    },
  };
};
