/** The first part of an epoch's file, up to the complete record: whose it is, and what it goes on from. */
import {
  type ByteSource,
  decodeComplete,
  decodeHeader,
  type Frame,
  isWithoutStart,
  readFrames,
} from './decoder.ts';
import { type CompleteRecord, FILE_START, type FramePosition, type LogHeader, TYPE } from './record.ts';
import { checkHeader, type LogIdentity } from './replay.ts';

export type Base = {
  readonly epoch: number;
  readonly header: LogHeader;
  readonly complete: CompleteRecord;
  /** Behind the complete record. */
  readonly end: FramePosition;
};

/**
 * Reads no further than the complete record; undefined where there is none, or where the file was emptied. The items
 * of the checkpoint are not looked at. Throws 'log-corrupt', 'log-version' or 'log-foreign', and the system's errors.
 */
export const readBase = async (
  source: ByteSource,
  path: string,
  epoch: number,
  identity: LogIdentity,
): Promise<Base | undefined> => {
  if (await isWithoutStart(source)) return undefined;
  let header: LogHeader | undefined;
  let complete: CompleteRecord | undefined;
  const visit = (frame: Frame): void => {
    if (header === undefined) {
      if (frame.type !== TYPE.header) throw frame.corrupt('it does not begin with a header');
      header = decodeHeader(frame);
      checkHeader(header, identity, epoch, path);
    } else if (frame.type === TYPE.complete) {
      complete = decodeComplete(frame);
    } else if (frame.type === TYPE.events) {
      throw frame.corrupt('events stand before the complete record');
    }
  };
  const { position } = await readFrames(source, path, FILE_START, visit, () => complete !== undefined);
  return header && complete && { epoch, header, complete, end: position };
};
